// Attention of one query over the filled places of a key/value cache, summed in fp32, each place read once.
//
// All places of all key/value heads form one line of num_kv_heads x context entries, which the threads share out
// evenly: a thread's part is a stretch of one head, or the end of one, whole heads, and the start of another. Each
// stretch gives a softmax of its own (maximum, sum, weighted values); the caller then combines a head's stretches.
// So threads are busy alike for one head with a long context and for many heads with a short one, with one launch.
//
// A stretch is read as a few long streams (places.h). kBlock places at a time are scored against all query heads of the
// group, then their values are added.
//
// Queries are fp32 also where a CPU multiplies bf16 (simd.h): a line of keys is widened once for the whole group, while
// vdpbf16ps takes two cycles a head on a Sapphire Rapids.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu_launch.h"
#include "places.h"
#include "simd.h"

namespace {

constexpr int kRows = 8;  // places whose values are added before the sums leave the registers
constexpr int64_t kMaxGroup = 16;
constexpr int64_t kMaxHeadDim = 256;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// How many places are scored at once against G query heads: as many as fill the lanes of one vector of sums.
template <int G>
constexpr int kPlaces = kLanes / G;

// products[g][j] += a register of the keys of each place times q, for G query heads.
template <class T, int G>
[[gnu::always_inline]] inline void add_products(const T* const* keys, int64_t d, const float* q, int64_t width,
                                                vec* products) {
  for (int j = 0; j < kPlaces<G>; ++j)
    for (int g = 0; g < G; ++g) {
      vec& product = products[g * kPlaces<G> + j];
      product = add_register(product, keys[j] + d, q + g * width + d);
    }
}

// The same with what is left of a head, less than a register.
template <class T, int G>
[[gnu::noinline]] void add_rest(const T* const* keys, int64_t d, int64_t count, const float* q, int64_t width,
                                vec* products) {
  T padded[kPlaces<G>][kPerRegister<T>] = {};
  const T* rest[kPlaces<G>];
  for (int j = 0; j < kPlaces<G>; ++j) {
    memcpy(padded[j], keys[j] + d, count * sizeof(T));
    rest[j] = padded[j];
  }
  add_products<T, G>(rest, 0, q + d, width, products);
}

// scores[g][j] = scale q[g] . keys[j] for G query heads and kPlaces<G> places, summed up together. kRest: a head ends
// within a register. Heads that don't have an instance of their own, and it is inlined, since else the compiler keeps
// the products in memory. kPrefetch: as yet unread.
template <class T, int G, bool kRest, bool kPrefetch>
[[gnu::always_inline]] inline void score(const Attention<T>& a, const T* const* keys, const float* q,
                                         float* scores) {
  constexpr int64_t kStep = kPerRegister<T>;
  vec products[kLanes];
  for (vec& product : products) product = vec{};
  int64_t d = 0;
  for (; d + kStep <= a.head_dim; d += kStep) {
    for (int j = 0; kPrefetch && d % kPerLine<T> == 0 && j < kPlaces<G>; ++j) a.prefetch(keys[j] + d);
    add_products<T, G>(keys, d, q, a.width(), products);
  }
  if constexpr (kRest) add_rest<T, G>(keys, d, a.head_dim - d, q, a.width(), products);
  float lanes[kLanes];
  store(lanes, sums(products) * a.scale);
  for (int g = 0; g < G; ++g) memcpy(scores + g * kBlock, lanes + g * kPlaces<G>, kPlaces<G> * sizeof(float));
}

// The scores of G heads; minus infinity behind them.
template <class T, int G, bool kRest, bool kPrefetch>
void score_heads(const Attention<T>& a, const Block<T>& block, const float* q, float* scores) {
  for (int64_t j = 0; j < block.count; j += kPlaces<G>)
    score<T, G, kRest, kPrefetch>(a, block.keys + j, q, scores + j);
  for (int g = 0; g < G; ++g) std::fill(scores + g * kBlock + block.count, scores + (g + 1) * kBlock, kMinusInfinity);
}

// For the whole group, four heads at a time. The first pass reads the keys, the others find them in the caches.
template <class T, bool kRest, bool kPrefetch = true>
void score_block(const Attention<T>& a, const Block<T>& block, const float* q, float* scores, int64_t g = 0) {
  const int64_t heads = a.group - g >= 4 ? 4 : a.group - g >= 2 ? 2 : 1;
  const auto pass = heads == 4   ? score_heads<T, 4, kRest, kPrefetch>
                    : heads == 2 ? score_heads<T, 2, kRest, kPrefetch>
                                 : score_heads<T, 1, kRest, kPrefetch>;
  pass(a, block, q + g * a.width(), scores + g * kBlock);
  if (g + heads < a.group) score_block<T, kRest, false>(a, block, q, scores, g + heads);
}

// The online softmax: a block with a new maximum scales down what was summed under the old one.
// Scores become weights exp(score - maximum).
template <class T>
void softmax_block(const Attention<T>& a, float* scores, float* weighted, float* maxima, float* sums) {
  for (int64_t g = 0; g < a.group; ++g) {
    float* row = scores + g * kBlock;
    vec block_maximum = load(row);
    for (int64_t j = kLanes; j < kBlock; j += kLanes) block_maximum = max(block_maximum, load(row + j));
    const float maximum = std::max(maxima[g], largest(block_maximum));
    // 0 in the first block, whose maximum is minus infinity; no new maximum in most of those that follow.
    const float shrink = maximum == maxima[g] ? 1.0f : std::exp(maxima[g] - maximum);
    vec block_sum = {};
    for (int64_t j = 0; j < kBlock; j += kLanes) {
      const vec weight = exp(load(row + j) - maximum);
      store(row + j, weight);
      block_sum += weight;
    }
    for (int64_t d = g * a.width(); shrink != 1.0f && d < (g + 1) * a.width(); d += kLanes)
      store(weighted + d, load(weighted + d) * shrink);
    sums[g] = sums[g] * shrink + sum(block_sum);
    maxima[g] = maximum;
  }
}

// weighted[g] += sum over rows of weights[g][j] rows[j][d...], for G heads and D registers of their width, of the last
// of which `columns` may be fewer than it holds.
template <class T, int G, int D, bool kPrefetch>
[[gnu::always_inline]] inline void add_columns(const Attention<T>& a, const T* const* rows, int count, int64_t d,
                                               int64_t columns, const float* weights, float* weighted) {
  constexpr int kTotals = D * kVecs<T>;
  vec totals[G][kTotals];
  for (int g = 0; g < G; ++g)
    for (int i = 0; i < kTotals; ++i) totals[g][i] = load(weighted + g * a.width() + d + i * kLanes);
  for (int j = 0; j < count; ++j)
    for (int i = 0; i < D; ++i) {
      const int64_t first = i * kPerRegister<T>;
      if (kPrefetch && first % kPerLine<T> == 0) a.prefetch(rows[j] + d + first);
      const Wide<T> value = load_wide(rows[j] + d + first, columns - first);
      for (int g = 0; g < G; ++g)
        for (int part = 0; part < kVecs<T>; ++part)
          totals[g][i * kVecs<T> + part] += weights[g * kBlock + j] * value.v[part];
    }
  for (int g = 0; g < G; ++g)
    for (int i = 0; i < kTotals; ++i) store(weighted + g * a.width() + d + i * kLanes, totals[g][i]);
}

// At least eight sums a pass, where rows and columns are whole: each waits four cycles for its last addition.
template <class T, int G, bool kPrefetch>
void add_rows(const Attention<T>& a, const T* const* rows, int count, const float* weights, float* weighted) {
  constexpr int kMany = (G == 1 ? 8 : 4) / kVecs<T>;
  constexpr int64_t kOne = kPerRegister<T>;
  int64_t d = 0;
  for (; count == kRows && d + kMany * kOne <= a.head_dim; d += kMany * kOne)
    add_columns<T, G, kMany, kPrefetch>(a, rows, kRows, d, kMany * kOne, weights, weighted);
  for (; d < a.head_dim; d += kOne)
    add_columns<T, G, 1, kPrefetch>(a, rows, count, d, a.head_dim - d, weights, weighted);
}

// For the whole group, as many heads at a time as the registers hold.
template <class T>
void add_group(const Attention<T>& a, const T* const* rows, int count, const float* weights, float* weighted) {
  constexpr int kMost = kLanes == 16 ? 4 : 2;
  int64_t g = 0;
  const auto add = [&](auto first, auto others, int heads) {
    for (; g + heads <= a.group; g += heads)
      (g == 0 ? first : others)(a, rows, count, weights + g * kBlock, weighted + g * a.width());
  };
  add(add_rows<T, kMost, true>, add_rows<T, kMost, false>, kMost);
  if constexpr (kMost > 2) {
    add(add_rows<T, 3, true>, add_rows<T, 3, false>, 3);
    add(add_rows<T, 2, true>, add_rows<T, 2, false>, 2);
  }
  add(add_rows<T, 1, true>, add_rows<T, 1, false>, 1);
}

template <class T>
void attend_block(const Attention<T>& a, const Block<T>& block, const float* q, float* scores, float* slot) {
  const auto score = a.head_dim % kPerRegister<T> == 0 ? score_block<T, false> : score_block<T, true>;
  score(a, block, q, scores, 0);
  softmax_block(a, scores, slot, a.maxima(slot), a.sums(slot));
  for (int64_t j = 0; j < block.count; j += kRows) {
    const int count = static_cast<int>(std::min<int64_t>(kRows, block.count - j));
    const T* values[kRows];
    for (int i = 0; i < count; ++i) values[i] = block.keys[j + i] + (a.v_cache - a.k_cache);
    add_group(a, values, count, scores + j, slot);
  }
}

// Places [begin, end) of one head, into the stretch's slot: the streams, then the few places that they leave.
template <class T>
void attend(const Attention<T>& a, int64_t head, int64_t begin, int64_t end, float* slot) {
  alignas(64) float scores[kMaxGroup * kBlock];
  alignas(64) float q[kMaxGroup * kMaxHeadDim];
  for (int64_t g = 0; g < a.group; ++g)
    make_factors(a.q + (head * a.group + g) * a.head_dim, a.head_dim, q + g * a.width());
  std::fill(slot, a.maxima(slot), 0.0f);
  std::fill(a.maxima(slot), a.sums(slot), kMinusInfinity);
  std::fill(a.sums(slot), a.sums(slot) + a.group, 0.0f);
  const auto block = [&](int64_t place, int64_t stream_places, int64_t streams_log2, int64_t count) {
    attend_block(a, {a, head, place, stream_places, streams_log2, count}, q, scores, slot);
  };
  const int64_t turns = (end - begin) >> a.streams_log2, most = kBlock >> a.streams_log2;
  for (int64_t turn = 0; turn < turns; turn += most)
    block(begin + turn, turns, a.streams_log2, std::min(most, turns - turn) << a.streams_log2);
  const int64_t done = turns << a.streams_log2;
  if (begin + done < end) block(begin + done, 0, 0, end - begin - done);
}

// The stretches of one share of the line of all places: one in each head that it touches.
template <class T>
void attend_share(const Attention<T>& a, int64_t begin, int64_t end, int64_t share) {
  for (int64_t head = begin / a.context; head * a.context < end; ++head) {
    const int64_t offset = head * a.context, first = std::max(begin - offset, int64_t{0});
    attend(a, head, first, std::min(end - offset, a.context), a.slot(head, share));
  }
}

// out = weighted values / sums, of shares [first, last] of a head brought to their common maximum.
template <class T>
void combine(const Attention<T>& a, int64_t head, int64_t first, int64_t last) {
  for (int64_t g = 0; g < a.group; ++g) {
    float maximum = kMinusInfinity, total = 0.0f;
    for (int64_t i = first; i <= last; ++i) maximum = std::max(maximum, a.maxima(a.slot(head, i))[g]);
    float* result = a.slot(head, first) + g * a.width();  // the first share's values become the whole's
    for (int64_t i = first; i <= last; ++i) {
      float* slot = a.slot(head, i);
      const float scale = std::exp(a.maxima(slot)[g] - maximum);
      total += a.sums(slot)[g] * scale;
      for (int64_t d = 0; d < a.width(); d += kLanes) {
        const vec part = load(slot + g * a.width() + d) * scale;
        store(result + d, i == first ? part : load(result + d) + part);
      }
    }
    T* out = a.out + (head * a.group + g) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d += kPerRegister<T>) {
      Wide<T> value;
      for (int part = 0; part < kVecs<T>; ++part) value.v[part] = load(result + d + part * kLanes) / total;
      store_wide(out + d, value, a.head_dim - d);
    }
  }
}

template <class T>
void attend_all(const Attention<T>& a, cpu_pool* pool) {
  const Shares shares(a.num_kv_heads * a.context, num_threads(pool));
  for_each_share(pool, shares.count,
                 [&](int64_t begin, int64_t end, int64_t share) { attend_share(a, begin, end, share); });
  for (int64_t head = 0; head < a.num_kv_heads; ++head)
    combine(a, head, shares.owner(head * a.context), shares.owner((head + 1) * a.context - 1));
}

// q and out [num_kv_heads * group, head_dim], contiguous. Places from *context (>= 1, read now) on are not read.
// group <= 16; head_dim is a multiple of 16, at most 256.
// scratch: (num_kv_heads + threads - 1) * group * (head_dim rounded up to 32 + 2) floats.
// num_streams: 1, 2, 4 or 8 of a stretch. prefetch_bytes: how far ahead of a load its stream is prefetched.

// Caches [num_kv_heads, max_context, head_dim], contiguous.
template <class T>
void contiguous(const T* q, const T* k_cache, const T* v_cache, const int64_t* context, T* out, float* scratch,
                int64_t num_kv_heads, int64_t group, int64_t head_dim, int64_t max_context, int64_t num_streams,
                int64_t prefetch_bytes, cpu_pool* pool) {
  const Cache cache{nullptr, kWhole, 0, max_context * head_dim};
  attend_all<T>({q, k_cache, v_cache, cache, out, num_kv_heads, group, head_dim, *context, __builtin_ctzll(num_streams),
                 prefetch_bytes, 1.0f / std::sqrt(static_cast<float>(head_dim)), scratch},
                pool);
}

// Caches [blocks, num_kv_heads, block_size, head_dim] by their strides, values behind keys at the same distance
// everywhere. block_size: a power of two. block_table: the blocks of the request's places in turn.
template <class T>
void paged(const T* q, const T* k_cache, const T* v_cache, const int32_t* block_table, const int64_t* context, T* out,
           float* scratch, int64_t num_kv_heads, int64_t group, int64_t head_dim, int64_t block_size,
           int64_t block_stride, int64_t head_stride, int64_t num_streams, int64_t prefetch_bytes, cpu_pool* pool) {
  const Cache cache{block_table, __builtin_ctzll(block_size), block_stride, head_stride};
  attend_all<T>({q, k_cache, v_cache, cache, out, num_kv_heads, group, head_dim, *context, __builtin_ctzll(num_streams),
                 prefetch_bytes, 1.0f / std::sqrt(static_cast<float>(head_dim)), scratch},
                pool);
}

}  // namespace

EXPORT_KERNEL(decode_attention_bf16, contiguous<bf16>)
EXPORT_KERNEL(decode_attention_f32, contiguous<float>)
EXPORT_KERNEL(decode_attention_paged_bf16, paged<bf16>)
EXPORT_KERNEL(decode_attention_paged_f32, paged<float>)
