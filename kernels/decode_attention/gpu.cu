// Attention of one query a request over the filled places of its key/value cache, summed in fp32, each place read once.
//
// One request alone must keep the whole card busy, so the context is split (flash decoding; Dao et al., 2023): a block
// takes one split of one key/value head of one request, with all query heads that share it (GQA), and leaves a softmax
// of its own: maximum, sum, weighted values. A second kernel brings the splits to their common maximum, in fixed order.
// How much context there is, is read on the card, since a captured graph keeps its arguments: a split without places
// has a sum of zero and a maximum of minus infinity, which weigh nothing. A request without any place, with which
// servers fill up a batch, gets zeros.
//
// Within a block a team of lanes reads a place, one pack each (128 bits; 16 lanes for a bf16 head of 128), so that a
// place's key is one contiguous read. A team takes kPlaces places a turn: their keys and values are all asked for
// before the first score is summed, and the values arrive while scores and softmax are computed. Each team keeps an
// online softmax; at the end teams meet by shuffles, and waves in shared memory.
#include "../portable.h"
#include "../slots.h"

namespace {

constexpr int kWaves = 4;   // of a block
constexpr int kPlaces = 2;  // of a team's turn: 4 packs in flight a lane
constexpr int kMaxHeads = 8;  // query heads of a block; larger groups are cut, and read the cache again
constexpr int kCombineThreads = 128;
constexpr int64_t kMaxHeadDim = 256, kMaxSplits = 256, kMaxGridY = 65535;

// Keys, and values likewise: place p of a head lies at row p % block_size of block table[p / block_size]. Without a
// table a request has one block of its own, as large as its context may become.
struct Cache {
  const int32_t* table;  // [num_requests, table_stride]; null: contiguous
  int64_t table_stride, block_size, block_stride, place_stride, head_stride;  // the last three in elements

  DEVICE_MEMBER int64_t offset(int64_t request, int64_t head, int64_t place) const {
    if (table == nullptr) return request * block_stride + head * head_stride + place * place_stride;
    // 64-bit division is slow
    const uint32_t index = static_cast<uint32_t>(place), size = static_cast<uint32_t>(block_size);
    const int64_t block = table[request * table_stride + index / size];
    return block * block_stride + int64_t{index % size} * place_stride + head * head_stride;
  }
};

// Filled places of each request: ours have 64 bits, servers' 32.
struct Contexts {
  const int64_t* wide;  // [num_requests]; null: narrow has them
  const int32_t* narrow;

  DEVICE_MEMBER int64_t operator[](int64_t request) const { return wide != nullptr ? wide[request] : narrow[request]; }
};

template <class T>
struct Attention {
  const T* q;  // [num_requests, num_kv_heads, group, head_dim]
  const T *k_cache, *v_cache;
  Cache cache;
  Contexts contexts;
  T* out;           // as q
  float* partials;  // [num_requests, num_kv_heads * group, num_splits, head_dim + 2]: values, maximum, sum
  int64_t num_kv_heads, group, head_dim, num_splits;
  int64_t* calls;  // may be null

  DEVICE_MEMBER float* partial(int64_t request, int64_t head, int64_t split) const {
    return partials + ((request * num_kv_heads * group + head) * num_splits + split) * (head_dim + 2);
  }
};

// The online softmax of kHeads query heads in one lane, with the lane's share of the weighted values.
template <int kHeads, int kValues>
struct Softmax {
  float maximum[kHeads], sum[kHeads], values[kHeads][kValues];
};

// exp(x - maximum), 0 for minus infinity even if that is the maximum.
DEVICE float weight_of(float x, float maximum) { return x == -INFINITY ? 0.0f : expf(x - maximum); }

// Which packs of a place this lane has: team_lane, team_lane + kTeam, ...; behind the head's end it has none.
template <class T, int kTeam, int kPacks>
struct Slice {
  int64_t first, num_packs;

  DEVICE_MEMBER bool has(int i) const { return first + i * kTeam < num_packs; }
  DEVICE_MEMBER int64_t column(int i) const { return (first + i * kTeam) * kPackSize<T>; }

  // A zero pack where the lane has none. Places stream, read once; a query is read by all teams and all splits.
  DEVICE_MEMBER Pack query(const T* row, int i) const { return has(i) ? load_pack(row + column(i)) : Pack{}; }
  DEVICE_MEMBER Pack place(const T* row, int i) const { return has(i) ? load_pack_streaming(row + column(i)) : Pack{}; }
};

template <class T, int kPacks>
DEVICE float dot(const Pack (&a)[kPacks], const Pack (&b)[kPacks]) {
  float sum = 0.0f;
  UNROLL for (int i = 0; i < kPacks; ++i) {
    float x[kPackSize<T>], y[kPackSize<T>];
    unpack<T>(a[i], x);
    unpack<T>(b[i], y);
    UNROLL for (int j = 0; j < kPackSize<T>; ++j) sum += x[j] * y[j];
  }
  return sum;
}

// One turn's places into the softmax: scores[p] of head h, and their values.
template <class T, int kHeads, int kPacks>
DEVICE void add_places(Softmax<kHeads, kPacks * kPackSize<T>>& softmax, int h, const float (&scores)[kPlaces],
                       const Pack (&values)[kPlaces][kPacks]) {
  float maximum = softmax.maximum[h];
  UNROLL for (int p = 0; p < kPlaces; ++p) maximum = fmaxf(maximum, scores[p]);
  // A new maximum scales down what was summed under the old one.
  const float shrink = weight_of(softmax.maximum[h], maximum);
  softmax.maximum[h] = maximum;
  softmax.sum[h] *= shrink;
  UNROLL for (int j = 0; j < kPacks * kPackSize<T>; ++j) softmax.values[h][j] *= shrink;
  UNROLL for (int p = 0; p < kPlaces; ++p) {
    const float weight = weight_of(scores[p], maximum);
    softmax.sum[h] += weight;
    UNROLL for (int i = 0; i < kPacks; ++i) {
      float value[kPackSize<T>];
      unpack<T>(values[p][i], value);
      UNROLL for (int j = 0; j < kPackSize<T>; ++j) softmax.values[h][i * kPackSize<T> + j] += weight * value[j];
    }
  }
}

// The softmaxes of all teams of a wave, in all of them.
template <int kWave, int kTeam, int kHeads, int kValues>
DEVICE void meet_teams(Softmax<kHeads, kValues>& softmax) {
  UNROLL for (int distance = kTeam; distance < kWave; distance *= 2)
    UNROLL for (int h = 0; h < kHeads; ++h) {
      const float maximum = fmaxf(softmax.maximum[h], shuffle_xor<kWave>(softmax.maximum[h], distance));
      const float scale = weight_of(softmax.maximum[h], maximum);
      softmax.maximum[h] = maximum;
      softmax.sum[h] *= scale;
      softmax.sum[h] += shuffle_xor<kWave>(softmax.sum[h], distance);
      UNROLL for (int j = 0; j < kValues; ++j) {
        softmax.values[h][j] *= scale;
        softmax.values[h][j] += shuffle_xor<kWave>(softmax.values[h][j], distance);
      }
    }
}

// Column d of the weighted values, the maximum and the sum of `count` softmaxes, which lie `stride` floats apart:
// values [head_dim], maximum, sum.
DEVICE void combine(const float* parts, int64_t stride, int64_t count, int64_t head_dim, int64_t d, float& value,
                    float& maximum, float& sum) {
  maximum = -INFINITY, sum = 0.0f, value = 0.0f;
  for (int64_t i = 0; i < count; ++i) maximum = fmaxf(maximum, parts[i * stride + head_dim]);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = weight_of(parts[i * stride + head_dim], maximum);
    sum += parts[i * stride + head_dim + 1] * scale;
    value += parts[i * stride + d] * scale;
  }
}

template <class T, int kTeam, int kPacks, int kHeads, int kWave>
KERNEL(kWaves* kWave) attend_split(Attention<T> a) {
  count_call(a.calls);
  constexpr int kTeams = kWaves * kWave / kTeam, kValues = kPacks * kPackSize<T>;
  const int64_t split = block_index_x(), request = block_index_z();
  const int64_t tiles = (a.group + kMaxHeads - 1) / kMaxHeads;
  const int64_t kv_head = block_index_y() / tiles, first_head = block_index_y() % tiles * kMaxHeads;
  const int64_t num_heads = a.group - first_head < kHeads ? a.group - first_head : kHeads;
  const int64_t context = a.contexts[request], per_split = (context + a.num_splits - 1) / a.num_splits;
  const int64_t begin = split * per_split, end = begin + per_split < context ? begin + per_split : context;
  const int team = thread_index() / kTeam;
  const Slice<T, kTeam, kPacks> slice{thread_index() % kTeam, a.head_dim / kPackSize<T>};
  const float scale = 1.0f / sqrtf(static_cast<float>(a.head_dim));

  Pack q[kHeads][kPacks];
  Softmax<kHeads, kValues> softmax = {};
  const int64_t q_row = (request * a.num_kv_heads + kv_head) * a.group + first_head;
  UNROLL for (int h = 0; h < kHeads; ++h) {
    const T* row = a.q + (q_row + (h < num_heads ? h : 0)) * a.head_dim;  // heads too many compute the first again
    UNROLL for (int i = 0; i < kPacks; ++i) q[h][i] = slice.query(row, i);
    softmax.maximum[h] = -INFINITY;
  }
  // All lanes make the same number of turns, since shuffles need them all. A place behind the end stands for the last
  // one when it is loaded, and scores minus infinity.
  for (int64_t turn = begin; turn < end; turn += kTeams * kPlaces) {
    Pack keys[kPlaces][kPacks], values[kPlaces][kPacks];
    UNROLL for (int p = 0; p < kPlaces; ++p) {
      const int64_t place = turn + p * kTeams + team;
      const int64_t offset = a.cache.offset(request, kv_head, place < end ? place : end - 1);
      UNROLL for (int i = 0; i < kPacks; ++i) keys[p][i] = slice.place(a.k_cache + offset, i);
      UNROLL for (int i = 0; i < kPacks; ++i) values[p][i] = slice.place(a.v_cache + offset, i);
    }
    UNROLL for (int h = 0; h < kHeads; ++h) {
      float scores[kPlaces];
      UNROLL for (int p = 0; p < kPlaces; ++p) {
        const float score = team_sum<kWave, kTeam>(dot<T>(q[h], keys[p])) * scale;
        scores[p] = turn + p * kTeams + team < end ? score : -INFINITY;
      }
      add_places<T, kHeads, kPacks>(softmax, h, scores, values);
    }
  }
  meet_teams<kWave, kTeam>(softmax);

  // [kWaves, kHeads, head_dim + 2], written by the first team of each wave.
  float* shared = shared_memory<float>();
  const int64_t stride = a.head_dim + 2;
  if (thread_index() % kWave < kTeam)
    UNROLL for (int h = 0; h < kHeads; ++h) {
      float* part = shared + (thread_index() / kWave * kHeads + h) * stride;
      UNROLL for (int i = 0; i < kPacks; ++i)
        if (slice.has(i))
          UNROLL for (int j = 0; j < kPackSize<T>; ++j)
            part[slice.column(i) + j] = softmax.values[h][i * kPackSize<T> + j];
      if (thread_index() % kWave == 0) part[a.head_dim] = softmax.maximum[h], part[a.head_dim + 1] = softmax.sum[h];
    }
  barrier();
  for (int64_t i = thread_index(); i < num_heads * a.head_dim; i += kWaves * kWave) {
    const int64_t h = i / a.head_dim, d = i % a.head_dim;
    float value, maximum, sum;
    combine(shared + h * stride, kHeads * stride, kWaves, a.head_dim, d, value, maximum, sum);
    float* partial = a.partial(request, kv_head * a.group + first_head + h, split);
    partial[d] = value;
    if (d == 0) partial[a.head_dim] = maximum, partial[a.head_dim + 1] = sum;
  }
}

// One block a query head.
template <class T>
KERNEL(kCombineThreads) combine_splits(Attention<T> a) {
  const int64_t head = block_index_x(), request = block_index_y(), num_heads = a.num_kv_heads * a.group;
  for (int64_t d = thread_index(); d < a.head_dim; d += kCombineThreads) {
    float value, maximum, sum;
    combine(a.partial(request, head, 0), a.head_dim + 2, a.num_splits, a.head_dim, d, value, maximum, sum);
    a.out[(request * num_heads + head) * a.head_dim + d] = from_float<T>(a.contexts[request] == 0 ? 0.0f : value / sum);
  }
}

// --- launches ----------------------------------------------------------------------------------------------------

template <class T, int kTeam, int kPacks>
int launch_attention(const Attention<T>& a, int64_t num_requests, int64_t wave, uint64_t stream) {
  const int64_t tiles = divide_up(a.group, kMaxHeads);
  return with_wave(wave, [&](auto width) {
    return with_at_least<1, 2, 4, kMaxHeads>(a.group < kMaxHeads ? a.group : kMaxHeads, [&](auto heads) {
      constexpr int kWave = decltype(width)::value, kHeads = decltype(heads)::value;
      const size_t shared_bytes = kWaves * kHeads * (a.head_dim + 2) * sizeof(float);
      const Grid grid{a.num_splits, a.num_kv_heads * tiles, num_requests};
      return launch(attend_split<T, kTeam, kPacks, kHeads, kWave>, grid, kWaves * kWave, shared_bytes, stream, a);
    });
  });
}

template <class T>
int attend(const Attention<T>& a, int64_t num_requests, int64_t wave, uint64_t stream) {
  const int64_t tiles = divide_up(a.group, kMaxHeads), num_packs = a.head_dim / kPackSize<T>;
  if (num_requests < 1 || num_requests > kMaxGridY || a.num_kv_heads < 1 || a.num_kv_heads * tiles > kMaxGridY)
    return kBadSize;
  if (a.group < 1 || a.head_dim < 1 || a.head_dim > kMaxHeadDim || a.head_dim % kPackSize<T> != 0) return kBadSize;
  if (a.num_splits < 1 || a.num_splits > kMaxSplits) return kBadParameter;
  if (!is_aligned(a.q) || !is_aligned(a.k_cache) || !is_aligned(a.v_cache)) return kBadAlignment;
  const int64_t strides = a.cache.block_stride | a.cache.place_stride | a.cache.head_stride;
  if (strides % kPackSize<T> != 0) return kBadAlignment;  // a power of two divides all where it divides their union
  constexpr int kPacks = kPackSize<T> == 4 ? 2 : 1;  // a lane's, of the widest heads
  const int error = num_packs <= 8    ? launch_attention<T, 8, 1>(a, num_requests, wave, stream)
                    : num_packs <= 16 ? launch_attention<T, 16, 1>(a, num_requests, wave, stream)
                    : num_packs <= 32 ? launch_attention<T, 32, 1>(a, num_requests, wave, stream)
                                      : launch_attention<T, 32, kPacks>(a, num_requests, wave, stream);
  if (error != 0) return error;
  return launch(combine_splits<T>, {a.num_kv_heads * a.group, num_requests}, kCombineThreads, 0, stream, a);
}

// q and out [num_requests, num_kv_heads * group, head_dim], contiguous. contexts [num_requests]: places from there on
// are not read. head_dim: whole packs of 16 bytes, at most 256. num_splits: 1 to 256.
// partials: num_requests * num_kv_heads * group * num_splits * (head_dim + 2) floats of scratch.

// Caches [num_kv_heads, max_context, head_dim] a request, request_stride elements from one request to the next.
template <class T>
int contiguous(const T* q, const T* k_cache, const T* v_cache, const int64_t* contexts, T* out, float* partials,
               int64_t num_requests, int64_t num_kv_heads, int64_t group, int64_t head_dim, int64_t max_context,
               int64_t request_stride, int64_t num_splits, int64_t wave, uint64_t stream) {
  const Cache cache{nullptr, 0, max_context, request_stride, head_dim, max_context * head_dim};
  const Attention<T> a{q,        k_cache,      v_cache, cache,    {contexts, nullptr}, out,
                       partials, num_kv_heads, group,   head_dim, num_splits,          nullptr};
  return attend(a, num_requests, wave, stream);
}

// Caches in blocks of block_size places, as servers keep them: strides in elements from one block, place and head to the
// next, keys and values alike. block_table [num_requests, table_stride]: the blocks of each request's places in turn.
// calls: null, or a number on the card that every launch adds one to.
template <class T>
int paged(const T* q, const T* k_cache, const T* v_cache, const int32_t* block_table, const int32_t* contexts, T* out,
          float* partials, int64_t num_requests, int64_t num_kv_heads, int64_t group, int64_t head_dim,
          int64_t block_size, int64_t block_stride, int64_t place_stride, int64_t head_stride, int64_t table_stride,
          int64_t num_splits, int64_t wave, int64_t* calls, uint64_t stream) {
  if (block_size < 1) return kBadSize;
  const Cache cache{block_table, table_stride, block_size, block_stride, place_stride, head_stride};
  const Attention<T> a{q,        k_cache,      v_cache, cache,    {nullptr, contexts}, out,
                       partials, num_kv_heads, group,   head_dim, num_splits,          calls};
  return attend(a, num_requests, wave, stream);
}

}  // namespace

EXPORT_KERNEL(decode_attention_bf16, contiguous<bf16>)
EXPORT_KERNEL(decode_attention_f16, contiguous<f16>)
EXPORT_KERNEL(decode_attention_f32, contiguous<float>)
EXPORT_KERNEL(decode_attention_paged_bf16, paged<bf16>)
EXPORT_KERNEL(decode_attention_paged_f16, paged<f16>)
EXPORT_KERNEL(decode_attention_paged_f32, paged<float>)
