// Attention of one query over the filled places of a key/value cache, in fp32, each place read once.
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
  // One slot a stretch: group x head_dim weighted values, then the group's maxima, then its sums.
  float* scratch;

  // Along the line of all places head or share grows by one from each stretch to the next, so head + share numbers
  // them, and num_kv_heads + num_threads - 1 slots are enough.
  float* slot(int64_t head, int64_t share) const { return scratch + (head + share) * group * (head_dim + 2); }
  float* maxima(float* slot) const { return slot + group * head_dim; }
  float* sums(float* slot) const { return slot + group * (head_dim + 1); }
};

inline void prefetch(const void* from, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i);
}

// scores[g][j] = q[g] . keys[j] for G query heads and as many places as make kLanes products together: each key is
// widened once for the G heads, and the products are summed up together. Of `count` < kLanes / G places the last one
// stands in for those that are missing.
template <class T, int G>
void score(const T* keys, int64_t count, int64_t head_dim, const float* q, float* scores) {
  constexpr int kPlaces = kLanes / G;
  const T* places[kPlaces];
  for (int j = 0; j < kPlaces; ++j) places[j] = keys + std::min<int64_t>(j, count - 1) * head_dim;
  vec products[kLanes] = {};
  int64_t d = 0;
  do {  // a loop that may not run at all makes GCC keep the products in memory
    for (int j = 0; j < kPlaces; ++j) {
      const vec key = load(places[j] + d);
      for (int g = 0; g < G; ++g) products[g * kPlaces + j] += key * load(q + g * head_dim + d);
    }
    d += kLanes;
  } while (d < head_dim);
  float lanes[kLanes];
  store(lanes, sums(products));
  for (int g = 0; g < G; ++g) memcpy(scores + g * kBlock, lanes + g * kPlaces, kPlaces * sizeof(float));
}

// The scores of G heads and `count` places; minus infinity behind them.
template <class T, int G>
void score_block(const Attention<T>& a, const T* keys, const T* prefetched, int64_t count, const float* q,
                 float* scores) {
  constexpr int64_t kPlaces = kLanes / G;
  for (int64_t j = 0; j < count; j += kPlaces) {
    prefetch(prefetched + j * a.head_dim, kPlaces * a.head_dim * sizeof(T));
    score<T, G>(keys + j * a.head_dim, count - j, a.head_dim, q, scores + j);
  }
  for (int g = 0; g < G; ++g)
    for (int64_t j = count; j < kBlock; ++j) scores[g * kBlock + j] = kMinusInfinity;
}

// For the whole group, four heads at a time. The first pass brings the keys into the cache and fetches `prefetched`.
template <class T>
void score_group(const Attention<T>& a, const T* keys, const T* prefetched, int64_t count, const float* q,
                 float* scores) {
  for (int64_t g = 0; g < a.group;) {
    const auto rest = a.group - g;
    const auto pass = rest >= 4 ? score_block<T, 4> : rest >= 2 ? score_block<T, 2> : score_block<T, 1>;
    pass(a, keys, g == 0 ? prefetched : keys, count, q + g * a.head_dim, scores + g * kBlock);
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
    for (int64_t d = 0; shrink != 1.0f && d < a.head_dim; d += kLanes)
      store(weighted + g * a.head_dim + d, load(weighted + g * a.head_dim + d) * shrink);
    sums[g] = sums[g] * shrink + sum(block_sum);
    maxima[g] = maximum;
  }
}

// weighted[g] += sum of weights[g][j] values[j] over N places: that many at once, for one pass over the sums.
template <class T, int N>
void add_values(const Attention<T>& a, const T* values, const float* weights, float* weighted) {
  for (int64_t d = 0; d < a.head_dim; d += kLanes) {
    vec value[N];
    for (int j = 0; j < N; ++j) value[j] = load(values + j * a.head_dim + d);
    for (int64_t g = 0; g < a.group; ++g) {
      vec total = load(weighted + g * a.head_dim + d);
      for (int j = 0; j < N; ++j) total += weights[g * kBlock + j] * value[j];
      store(weighted + g * a.head_dim + d, total);
    }
  }
}

template <class T>
void add_block(const Attention<T>& a, const T* values, const T* prefetched, int64_t count, const float* weights,
               float* weighted) {
  const int64_t place_bytes = a.head_dim * sizeof(T);
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    prefetch(prefetched + j * a.head_dim, 4 * place_bytes);
    add_values<T, 4>(a, values + j * a.head_dim, weights + j, weighted);
  }
  for (; j < count; ++j) add_values<T, 1>(a, values + j * a.head_dim, weights + j, weighted);
}

// Places [begin, end) of one head, into the stretch's slot.
template <class T>
void attend(const Attention<T>& a, int64_t head, int64_t begin, int64_t end, float* slot) {
  alignas(64) float q[kMaxGroup * kMaxHeadDim], scores[kMaxGroup * kBlock];
  const vec scale = broadcast(1.0f / std::sqrt(static_cast<float>(a.head_dim)));
  const int64_t q_size = a.group * a.head_dim;
  for (int64_t i = 0; i < q_size; i += kLanes) store(q + i, load(a.q + head * q_size + i) * scale);
  std::fill(slot, a.maxima(slot), 0.0f);
  std::fill(a.maxima(slot), a.sums(slot), kMinusInfinity);
  std::fill(a.sums(slot), a.sums(slot) + a.group, 0.0f);
  for (int64_t place = begin; place < end; place += kBlock) {
    const T* keys = a.k_cache + (head * a.max_context + place) * a.head_dim;
    const T* values = a.v_cache + (head * a.max_context + place) * a.head_dim;
    const int64_t count = std::min(kBlock, end - place);
    score_group(a, keys, values, count, q, scores);
    softmax_block(a, scores, slot, a.maxima(slot), a.sums(slot));
    add_block(a, values, keys + kBlock * a.head_dim, count, scores, slot);
  }
}

// The stretches of one share of the line of all places: one in each head that it touches.
template <class T>
void attend_share(const Attention<T>& a, int64_t begin, int64_t end, int64_t share) {
  for (int64_t head = begin / a.context; head * a.context < end; ++head) {
    const int64_t offset = head * a.context;
    attend(a, head, std::max(begin - offset, int64_t{0}), std::min(end - offset, a.context), a.slot(head, share));
  }
}

// out = weighted values / sums, of shares [first, last] of a head brought to their common maximum.
template <class T>
void combine(const Attention<T>& a, int64_t head, int64_t first, int64_t last) {
  for (int64_t g = 0; g < a.group; ++g) {
    float maximum = kMinusInfinity, total = 0.0f;
    for (int64_t i = first; i <= last; ++i) maximum = std::max(maximum, a.maxima(a.slot(head, i))[g]);
    float* result = a.slot(head, first) + g * a.head_dim;  // the first share's values become the whole's
    for (int64_t i = first; i <= last; ++i) {
      float* slot = a.slot(head, i);
      const float scale = std::exp(a.maxima(slot)[g] - maximum);
      total += a.sums(slot)[g] * scale;
      for (int64_t d = 0; d < a.head_dim; d += kLanes) {
        const vec part = load(slot + g * a.head_dim + d) * scale;
        store(result + d, i == first ? part : load(result + d) + part);
      }
    }
    T* out = a.out + (head * a.group + g) * a.head_dim;
    for (int64_t d = 0; d < a.head_dim; d += kLanes) store(out + d, load(result + d) / total);
  }
}

// q and out [num_kv_heads * group, head_dim], caches [num_kv_heads, max_context, head_dim], all contiguous. Places from
// *context (>= 1, read now) on are not read. group <= 16; head_dim is a multiple of 16, at most 256.
// scratch: (num_kv_heads + threads - 1) * group * (head_dim + 2) floats.
template <class T>
void decode_attention(const T* q, const T* k_cache, const T* v_cache, const int64_t* context, T* out, float* scratch,
                      int64_t num_kv_heads, int64_t group, int64_t head_dim, int64_t max_context, cpu_pool* pool) {
  const Attention<T> a{q, k_cache, v_cache, out, num_kv_heads, group, head_dim, max_context, *context, scratch};
  const Shares shares(num_kv_heads * a.context, num_threads(pool));
  for_each_share(pool, shares.count,
                 [&](int64_t begin, int64_t end, int64_t share) { attend_share(a, begin, end, share); });
  for (int64_t head = 0; head < num_kv_heads; ++head)
    combine(a, head, shares.owner(head * a.context), shares.owner((head + 1) * a.context - 1));
}

}  // namespace

EXPORT_KERNEL(decode_attention_bf16, decode_attention<bf16>)
EXPORT_KERNEL(decode_attention_f32, decode_attention<float>)
