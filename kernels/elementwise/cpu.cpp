// What stands between the products and the attention of a decode step: embedding row, norms, rotary embedding with the
// write into the cache, activation, arg max.
//
// Storage is bf16 or fp32, arithmetic fp32. Where transformers' Llama and Qwen models round to the storage type in the
// middle (norms between scaling and weight, the activation before its product), so do we; only the rotation is rounded
// once, at its end. One row is a few microseconds of work on data that the cache holds, less than waking threads costs:
// only rows are split over the pool.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu_launch.h"
#include "simd.h"

namespace {

// Calls body(row) for each of m rows: one on the calling thread, more on the pool.
template <class Body>
void for_each_row(cpu_pool* pool, int64_t m, Body body) {
  for_each_share(m == 1 ? nullptr : pool, m, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

// A norm's weight. Llama's is a factor, and x is rounded before it; a centered one (Gemma, Qwen3.5) is stored as its
// distance from 1, and nothing is rounded until the end.
template <class T>
struct Norm {
  const T* weight;
  double eps;
  bool centered;

  vec scale(vec x, float inverse, int64_t i, int64_t left) const {
    const vec w = load(weight + i, left);
    return rounded_to<T>(centered ? x * inverse * (1.0f + w) : rounded_to<T>(x * inverse) * w);
  }
};

template <class T>
void rmsnorm_row(const T* x, const Norm<T>& norm, T* out, int64_t size) {
  const float inverse = inverse_rms(x, size, norm.eps);
  for (int64_t i = 0; i < size; i += kLanes)
    store(out + i, norm.scale(load(x + i, size - i), inverse, i, size - i), size - i);
}

template <class T>
void add_row(T* residual, const T* delta, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    store(residual + i, load(residual + i, left) + load(delta + i, left), left);
  }
}

// --- the operations: row-major, contiguous where no stride is given; strides are of rows, in elements -------------

// token_ids [m], table [vocabulary, hidden], out [m, hidden]
template <class T>
void embed(const int64_t* token_ids, const T* table, T* out, int64_t m, int64_t hidden, cpu_pool* pool) {
  for_each_row(pool, m, [=](int64_t row) {
    memcpy(out + row * hidden, table + token_ids[row] * hidden, hidden * sizeof(T));
  });
}

// x and out [m, hidden], weight [hidden]
template <class T>
void rmsnorm(const T* x, const T* weight, double eps, int64_t centered, T* out, int64_t m, int64_t hidden,
             cpu_pool* pool) {
  const Norm<T> norm{weight, eps, centered != 0};
  for_each_row(pool, m, [=](int64_t row) { rmsnorm_row(x + row * hidden, norm, out + row * hidden, hidden); });
}

// residual [m, hidden] += delta, rounded to T, then as rmsnorm
template <class T>
void add_rmsnorm(T* residual, const T* delta, const T* weight, double eps, int64_t centered, T* out, int64_t m,
                 int64_t hidden, cpu_pool* pool) {
  const Norm<T> norm{weight, eps, centered != 0};
  for_each_row(pool, m, [=](int64_t row) {
    add_row(residual + row * hidden, delta + row * hidden, hidden);
    rmsnorm_row(residual + row * hidden, norm, out + row * hidden, hidden);
  });
}

// One position's angles: lane i of the first `rotary` turns with lane i + rotary / 2, those behind stay.
struct Angles {
  const float *cosine, *sine;
  int64_t rotary;
};

// One head of one row: RMSNorm over the head if it has a weight, then the rotation.
template <class T>
void rotate_head(const T* x, const Norm<T>& norm, const Angles& angles, T* out, int64_t head_dim) {
  const int64_t half = angles.rotary / 2;
  const float inverse = norm.weight == nullptr ? 1.0f : inverse_rms(x, head_dim, norm.eps);
  const auto normed = [&](int64_t i, int64_t left) {
    const vec value = load(x + i, left);
    return norm.weight == nullptr ? value : norm.scale(value, inverse, i, left);
  };
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t left = half - i;
    const vec low = normed(i, left), high = normed(half + i, left);
    const vec c = load(angles.cosine + i, left), s = load(angles.sine + i, left);
    store(out + i, low * c - high * s, left);
    store(out + half + i, high * c + low * s, left);
  }
  for (int64_t i = angles.rotary; i < head_dim; i += kLanes) store(out + i, normed(i, head_dim - i), head_dim - i);
}

// q [m, num_heads, head_dim], k and v [m, num_kv_heads, head_dim]; norm weights [head_dim] or null; cosine and sine
// [max_context, rotary / 2]. Row i is position *context - m + i, which must be a place of the caches
// [num_kv_heads, max_context, head_dim]. Query heads may stand apart: gates lie between those of Qwen3.5.
template <class T>
void qk_norm_rope_cache(const T* q, const T* k, const T* v, const T* q_weight, const T* k_weight, double eps,
                        int64_t centered, const float* cosine, const float* sine, const int64_t* context, T* q_out,
                        T* k_cache, T* v_cache, int64_t m, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                        int64_t rotary, int64_t max_context, int64_t q_stride, int64_t q_head_stride,
                        int64_t k_stride, int64_t v_stride, cpu_pool* pool) {
  const Norm<T> q_norm{q_weight, eps, centered != 0}, k_norm{k_weight, eps, centered != 0};
  for_each_row(pool, m, [=](int64_t row) {
    const int64_t position = *context - m + row, turn = position * (rotary / 2);
    const Angles angles{cosine + turn, sine + turn, rotary};
    for (int64_t head = 0; head < num_heads; ++head)
      rotate_head(q + row * q_stride + head * q_head_stride, q_norm, angles,
                  q_out + (row * num_heads + head) * head_dim, head_dim);
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      const int64_t place = (head * max_context + position) * head_dim;
      rotate_head(k + row * k_stride + head * head_dim, k_norm, angles, k_cache + place, head_dim);
      memcpy(v_cache + place, v + row * v_stride + head * head_dim, head_dim * sizeof(T));
    }
  });
}

// Keys and values of m tokens, k and v [m, num_kv_heads, head_dim], into a cache of blocks: the places' block_size
// within a block are contiguous, heads and blocks stand apart by their strides. slots [m]: block * block_size + place; a
// token whose slot is negative has none.
template <class T>
void write_places(const T* k, const T* v, const int64_t* slots, T* k_cache, T* v_cache, int64_t m, int64_t num_kv_heads,
                  int64_t head_dim, int64_t block_size, int64_t block_stride, int64_t head_stride, int64_t k_stride,
                  int64_t v_stride, cpu_pool* pool) {
  for_each_row(pool, m, [=](int64_t row) {
    if (slots[row] < 0) return;
    const int64_t block = slots[row] / block_size, within = slots[row] % block_size;
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      const int64_t place = block * block_stride + head * head_stride + within * head_dim;
      memcpy(k_cache + place, k + row * k_stride + head * head_dim, head_dim * sizeof(T));
      memcpy(v_cache + place, v + row * v_stride + head * head_dim, head_dim * sizeof(T));
    }
  });
}

template <class T>
void silu_mul_row(const T* gate, const T* up, T* out, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    const vec x = load(gate + i, left);
    store(out + i, rounded_to<T>(x * sigmoid(x)) * load(up + i, left), left);
  }
}

// gate, up and out [m, size]
template <class T>
void silu_mul(const T* gate, const T* up, T* out, int64_t m, int64_t size, int64_t gate_stride, int64_t up_stride,
              cpu_pool* pool) {
  for_each_row(pool, m, [=](int64_t row) {
    silu_mul_row(gate + row * gate_stride, up + row * up_stride, out + row * size, size);
  });
}

template <class T>
void sigmoid_mul_row(T* x, const T* gate, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const int64_t left = size - i;
    store(x + i, load(x + i, left) * rounded_to<T>(sigmoid(load(gate + i, left))), left);
  }
}

// x [m, num_heads, head_dim] *= sigmoid(gate), rounded; a row's gates may stand apart.
template <class T>
void sigmoid_mul(T* x, const T* gate, int64_t m, int64_t num_heads, int64_t head_dim, int64_t gate_stride,
                 int64_t gate_head_stride, cpu_pool* pool) {
  for_each_row(pool, m, [=](int64_t row) {
    for (int64_t head = 0; head < num_heads; ++head)
      sigmoid_mul_row(x + (row * num_heads + head) * head_dim, gate + row * gate_stride + head * gate_head_stride,
                      head_dim);
  });
}

// Whether a value may be above `bound` or NaN: never misses one; zeros that pad a ragged end may count as well.
template <class T>
bool may_exceed(const T* x, int64_t size, float bound) {
  vec exceeds = {};
  for (int64_t i = 0; i < size; i += kLanes)
    exceeds = load(x + i, size - i) <= bound ? exceeds : broadcast(1.0f);
  return largest(exceeds) > 0.0f;
}

// logits [size]: first index of the largest value. As in torch, NaN counts as larger than every number. On the calling
// thread: the logits are in its cache, and 150,000 of them take some 10 us.
template <class T>
void argmax(const T* logits, int64_t* token, int64_t size, cpu_pool*) {
  constexpr int64_t kBlock = 256;  // looked at value by value only where it holds a new maximum: a few of hundreds
  float best = -std::numeric_limits<float>::infinity();
  *token = 0;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, size);
    if (!may_exceed(logits + begin, end - begin, best)) continue;
    for (int64_t i = begin; i < end; ++i) {
      const float value = to_float(logits[i]);
      if (value <= best) continue;
      *token = i;
      best = value;
      if (std::isnan(value)) return;
    }
  }
}

// *context += m.
void advance(int64_t* context, int64_t m, cpu_pool*) { *context += m; }

}  // namespace

EXPORT_KERNEL(advance_context, advance)

#define EXPORT_ELEMENTWISE(operation)              \
  EXPORT_KERNEL(operation##_bf16, operation<bf16>) \
  EXPORT_KERNEL(operation##_f32, operation<float>)

EXPORT_ELEMENTWISE(embed)
EXPORT_ELEMENTWISE(rmsnorm)
EXPORT_ELEMENTWISE(add_rmsnorm)
EXPORT_ELEMENTWISE(qk_norm_rope_cache)
EXPORT_ELEMENTWISE(write_places)
EXPORT_ELEMENTWISE(silu_mul)
EXPORT_ELEMENTWISE(sigmoid_mul)
EXPORT_ELEMENTWISE(argmax)
