// Attention of one query over the filled places of a key/value cache, summed in fp32, each place read once.
//
// All places of all key/value heads form one line of num_kv_heads x context entries, which the threads share out
// evenly: a thread's part is a stretch of one head, or the end of one, whole heads, and the start of another. Each
// stretch gives a softmax of its own (maximum, sum, weighted values); the caller then combines a head's stretches.
// So threads are busy alike for one head with a long context and for many heads with a short one, with one launch.
//
// A stretch is read in blocks of kBlock places that stay in the first-level cache: first the keys against all query
// heads of the group, then the values. Meanwhile the other half of the pair is prefetched.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu_launch.h"
#include "simd.h"

namespace {

constexpr int64_t kBlock = 64;
constexpr int64_t kMaxGroup = 16;
constexpr int64_t kMaxHeadDim = 256;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class T>
struct Attention {
  const T* q;        // [num_kv_heads, group, head_dim]
  const T* k_cache;  // [num_kv_heads, max_context, head_dim]
  const T* v_cache;
  T* out;  // as q
  int64_t num_kv_heads, group, head_dim, max_context, context;
  float scale;
  // One slot a stretch: group x width weighted values in wide order (simd.h), then the group's maxima, then its sums.
  float* scratch;

  // Of a head's queries and weighted values: whole lines.
  int64_t width() const { return whole_lines(head_dim, kPerLine<bf16>); }

  const T* keys(int64_t head, int64_t place) const { return k_cache + (head * max_context + place) * head_dim; }

  int64_t block_bytes(int64_t places) const { return std::min(places, kBlock) * head_dim * int64_t{sizeof(T)}; }

  // Along the line of all places head or share grows by one from each stretch to the next, so head + share numbers
  // them, and num_kv_heads + num_threads - 1 slots are enough.
  float* slot(int64_t head, int64_t share) const { return scratch + (head + share) * group * (width() + 2); }
  float* maxima(float* slot) const { return slot + group * width(); }
  float* sums(float* slot) const { return slot + group * (width() + 1); }
};

// What is read after the block that is worked on, fetched bit by bit meanwhile: a core has room for a dozen lines in
// flight, and waits where it is asked for more at once. Taken from kRuns runs in turns, as in kernels/gemv, since a
// hardware prefetcher follows each: at 320 places four runs read 1.3 times as fast as one.
class Ahead {
 public:
  Ahead(const void* begin, int64_t num_bytes)
      : begin_(static_cast<const char*>(begin)),
        run_bytes_((num_bytes + kRuns * kLineBytes - 1) / (kRuns * kLineBytes) * kLineBytes) {}

  // Fetches as many bytes as were read: a line of each run whenever that makes so many.
  void follow(int64_t read_bytes) {
    for (owed_bytes_ += read_bytes; owed_bytes_ >= kRuns * kLineBytes && offset_ < run_bytes_; offset_ += kLineBytes) {
      for (int64_t run = 0; run < kRuns; ++run) __builtin_prefetch(begin_ + run * run_bytes_ + offset_);
      owed_bytes_ -= kRuns * kLineBytes;
    }
  }

 private:
  static constexpr int64_t kRuns = 4;
  const char* begin_;
  int64_t run_bytes_, offset_ = 0, owed_bytes_ = 0;
};

// How many places are scored at once against G query heads: as many as fill the lanes of one vector of sums.
template <int G>
constexpr int64_t kPlaces = kLanes / G;

// products[g][j] += a register of the keys of each place times q, for G query heads.
template <class T, int G>
void add_products(const T* const* keys, int64_t d, const Factor<T>* q, int64_t width, vec* products) {
  for (int64_t j = 0; j < kPlaces<G>; ++j)
    for (int g = 0; g < G; ++g) {
      vec& product = products[g * kPlaces<G> + j];
      product = add_register(product, keys[j] + d, q + g * width + d);
    }
}

// The same with what is left of a head, less than a register. Rare, and kept out of the way of the registers.
template <class T, int G>
[[gnu::noinline]] void add_rest(const T* const* keys, int64_t d, int64_t count, const Factor<T>* q, int64_t width,
                                vec* products) {
  T padded[kPlaces<G>][kPerRegister<T>] = {};
  const T* rest[kPlaces<G>];
  for (int64_t j = 0; j < kPlaces<G>; ++j) {
    memcpy(padded[j], keys[j] + d, count * sizeof(T));
    rest[j] = padded[j];
  }
  add_products<T, G>(rest, 0, q + d, width, products);
}

// scores[g][j] = scale q[g] . keys[j] for G query heads and kPlaces<G> places, summed up together. Of `count` places, if
// they are fewer, the last one stands in for those that are missing.
template <class T, int G>
void score(const Attention<T>& a, const T* keys, Ahead& ahead, int64_t count, const Factor<T>* q, float* scores) {
  constexpr int64_t kStep = kPerRegister<T>;
  const T* places[kPlaces<G>];
  for (int64_t j = 0; j < kPlaces<G>; ++j) places[j] = j == 0 ? keys : places[j - 1] + (j < count ? a.head_dim : 0);
  vec products[kLanes] = {};
  int64_t d = 0;
  for (; d + kStep <= a.head_dim; d += kStep) {
    ahead.follow(kPlaces<G> * kStep * sizeof(T));
    add_products<T, G>(places, d, q, a.width(), products);
  }
  if (d < a.head_dim) add_rest<T, G>(places, d, a.head_dim - d, q, a.width(), products);
  float lanes[kLanes];
  store(lanes, sums(products) * a.scale);
  for (int g = 0; g < G; ++g) memcpy(scores + g * kBlock, lanes + g * kPlaces<G>, kPlaces<G> * sizeof(float));
}

// The scores of G heads and `count` places; minus infinity behind them.
template <class T, int G>
void score_block(const Attention<T>& a, const T* keys, Ahead& ahead, int64_t count, const Factor<T>* q, float* scores) {
  for (int64_t j = 0; j < count; j += kPlaces<G>)
    score<T, G>(a, keys + j * a.head_dim, ahead, count - j, q, scores + j);
  for (int g = 0; g < G; ++g)
    for (int64_t j = count; j < kBlock; ++j) scores[g * kBlock + j] = kMinusInfinity;
}

// For the whole group, four heads at a time.
template <class T>
void score_group(const Attention<T>& a, const T* keys, Ahead& ahead, int64_t count, const Factor<T>* q, float* scores) {
  for (int64_t g = 0; g < a.group;) {
    const auto rest = a.group - g;
    const auto pass = rest >= 4 ? score_block<T, 4> : rest >= 2 ? score_block<T, 2> : score_block<T, 1>;
    pass(a, keys, ahead, count, q + g * a.width(), scores + g * kBlock);
    g += rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
  }
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
    const float shrink = std::exp(maxima[g] - maximum);  // 0 in the first block, whose maximum is minus infinity
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

// weighted[g] += sum over places of weights[g][j] values[j], for G heads and D registers of their width, of the last of
// which `columns` may be fewer than it holds. The sums stay in registers over all places.
template <class T, int G, int D>
void add_values(const Attention<T>& a, const T* values, Ahead& ahead, int64_t count, int64_t columns,
                const float* weights, float* weighted) {
  constexpr int kTotals = D * kVecs<T>;
  vec totals[G][kTotals];
  for (int g = 0; g < G; ++g)
    for (int i = 0; i < kTotals; ++i) totals[g][i] = load(weighted + g * a.width() + i * kLanes);
  for (int64_t j = 0; j < count; ++j) {
    ahead.follow(D * kLanes * sizeof(float));
    for (int d = 0; d < D; ++d) {
      const int64_t first = d * kPerRegister<T>;
      const Wide<T> value = load_wide(values + j * a.head_dim + first, columns - first);
      for (int g = 0; g < G; ++g)
        for (int part = 0; part < kVecs<T>; ++part)
          totals[g][d * kVecs<T> + part] += weights[g * kBlock + j] * value.v[part];
    }
  }
  for (int g = 0; g < G; ++g)
    for (int i = 0; i < kTotals; ++i) store(weighted + g * a.width() + i * kLanes, totals[g][i]);
}

template <class T, int G>
void add_heads(const Attention<T>& a, const T* values, Ahead& ahead, int64_t count, const float* weights,
               float* weighted) {
  constexpr int kMany = 4 / kVecs<T>;
  constexpr int64_t kOne = kPerRegister<T>;
  int64_t d = 0;
  for (; d + kMany * kOne <= a.head_dim; d += kMany * kOne)
    add_values<T, G, kMany>(a, values + d, ahead, count, kMany * kOne, weights, weighted + d);
  for (; d < a.head_dim; d += kOne)
    add_values<T, G, 1>(a, values + d, ahead, count, a.head_dim - d, weights, weighted + d);
}

// For the whole group, as many heads at a time as the registers hold.
template <class T>
void add_block(const Attention<T>& a, const T* values, Ahead& ahead, int64_t count, const float* weights,
               float* weighted) {
  constexpr int kMost = kLanes == 16 ? 4 : 2;
  int64_t g = 0;
  const auto add = [&](auto pass, int heads) {
    for (; g + heads <= a.group; g += heads)
      pass(a, values, ahead, count, weights + g * kBlock, weighted + g * a.width());
  };
  add(add_heads<T, kMost>, kMost);
  if constexpr (kMost > 2) add(add_heads<T, 2>, 2);
  add(add_heads<T, 1>, 1);
}

// Places [begin, end) of one head, into the stretch's slot. `next`: the keys after it.
template <class T>
void attend(const Attention<T>& a, int64_t head, int64_t begin, int64_t end, Ahead next, float* slot) {
  alignas(64) float scores[kMaxGroup * kBlock];
  alignas(64) Factor<T> q[kMaxGroup * kMaxHeadDim];
  for (int64_t g = 0; g < a.group; ++g)
    make_factors(a.q + (head * a.group + g) * a.head_dim, a.head_dim, q + g * a.width());
  std::fill(slot, a.maxima(slot), 0.0f);
  std::fill(a.maxima(slot), a.sums(slot), kMinusInfinity);
  std::fill(a.sums(slot), a.sums(slot) + a.group, 0.0f);
  for (int64_t place = begin; place < end; place += kBlock) {
    const T* keys = a.keys(head, place);
    const T* values = a.v_cache + (keys - a.k_cache);
    const int64_t count = std::min(kBlock, end - place);
    const int64_t left = end - place - count;
    Ahead to_values(values, a.block_bytes(count));
    score_group(a, keys, to_values, count, q, scores);
    softmax_block(a, scores, slot, a.maxima(slot), a.sums(slot));
    Ahead to_keys = left > 0 ? Ahead(keys + kBlock * a.head_dim, a.block_bytes(left)) : next;
    add_block(a, values, to_keys, count, scores, slot);
  }
}

// The stretches of one share of the line of all places: one in each head that it touches.
template <class T>
void attend_share(const Attention<T>& a, int64_t begin, int64_t end, int64_t share) {
  for (int64_t head = begin / a.context; head * a.context < end; ++head) {
    const int64_t offset = head * a.context, first = std::max(begin - offset, int64_t{0});
    const Ahead next(a.keys(head + 1, 0), a.block_bytes(end - offset - a.context));
    attend(a, head, first, std::min(end - offset, a.context), next, a.slot(head, share));
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

// q and out [num_kv_heads * group, head_dim], caches [num_kv_heads, max_context, head_dim], all contiguous. Places from
// *context (>= 1, read now) on are not read. group <= 16; head_dim is a multiple of 16, at most 256.
// scratch: (num_kv_heads + threads - 1) * group * (head_dim rounded up to 32 + 2) floats.
template <class T>
void decode_attention(const T* q, const T* k_cache, const T* v_cache, const int64_t* context, T* out, float* scratch,
                      int64_t num_kv_heads, int64_t group, int64_t head_dim, int64_t max_context, cpu_pool* pool) {
  const Attention<T> a{q, k_cache, v_cache, out, num_kv_heads, group, head_dim, max_context, *context,
                       1.0f / std::sqrt(static_cast<float>(head_dim)), scratch};
  const Shares shares(num_kv_heads * a.context, num_threads(pool));
  for_each_share(pool, shares.count,
                 [&](int64_t begin, int64_t end, int64_t share) { attend_share(a, begin, end, share); });
  for (int64_t head = 0; head < num_kv_heads; ++head)
    combine(a, head, shares.owner(head * a.context), shares.owner((head + 1) * a.context - 1));
}

}  // namespace

EXPORT_KERNEL(decode_attention_bf16, decode_attention<bf16>)
EXPORT_KERNEL(decode_attention_f32, decode_attention<float>)
