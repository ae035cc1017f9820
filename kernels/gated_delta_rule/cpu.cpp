// The gated delta rule between its projections, for one request: a short causal convolution over queries, keys and
// values, the rule itself on a state that stays in place, and a norm whose output is gated.
//
//   S = decay S;   S += k (beta (v - S^T k))^T;   o = S^T q         one S [key_dim, value_dim] a value head
//
// A decode step reads and writes all of S once, whatever the context, and S is most of what it touches. So S is walked
// twice while it is in the second-level cache: the first walk asks it with k and with q at once, the second writes it:
//
//   correction = beta (v - decay S^T k);   o = decay S^T q + (k . q) correction;   S = decay S + k correction^T
//
// Threads share out the key heads, each with the value heads that it serves: what they touch of convolution, state and
// output is theirs alone, so one launch does all. Storage is bf16 or fp32, rounded where transformers' Qwen3.5 rounds;
// state and arithmetic are fp32.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu_launch.h"
#include "simd.h"

namespace {

constexpr int64_t kMaxDim = 256;
constexpr float kL2Eps = 1e-6f;

template <class T>
struct GatedDelta {
  const T *qkv, *z, *b, *a;  // rows of tokens: [2 key heads' widths + value heads' widths], [values], [value heads] x 2
  int64_t qkv_stride, z_stride, b_stride, a_stride;
  const T* conv_weight;               // [channels, taps], the newest tap last
  const float *a_log, *dt_bias;       // [value heads]
  const T* norm_weight;               // [value_dim], or null: then `out` is what the norm would take
  double eps;
  T* conv_state;  // [taps - 1, channels], the oldest first
  float* state;   // [value heads, key_dim, value_dim]
  T* out;         // [m, value heads, value_dim]
  int64_t m, num_key_heads, group, key_dim, value_dim, taps;

  int64_t channels() const { return num_key_heads * (2 * key_dim + group * value_dim); }
  int64_t key_channel(int64_t head) const { return (num_key_heads + head) * key_dim; }
  int64_t value_channel(int64_t value_head) const { return 2 * num_key_heads * key_dim + value_head * value_dim; }

  // All channels at a position counted from the first new token: those before it are in the state.
  const T* inputs(int64_t position) const {
    return position < 0 ? conv_state + (taps - 1 + position) * channels() : qkv + position * qkv_stride;
  }
};

// --- convolution ------------------------------------------------------------------------------------------------

// The weights of kLanes channels for one tap: a checkpoint keeps the taps of a channel side by side.
template <class T>
vec tap_weights(const T* weight, int64_t taps) {
  float lanes[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] = to_float(weight[lane * taps]);
  return load(lanes);
}

// out[i] = silu of channel first + i at token t, for count channels.
template <class T>
void convolve(const GatedDelta<T>& g, int64_t t, int64_t first, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    vec sums = {};
    for (int64_t tap = 0; tap < g.taps; ++tap)
      sums += load(g.inputs(t - (g.taps - 1) + tap) + first + i) *
              tap_weights(g.conv_weight + (first + i) * g.taps + tap, g.taps);
    sums = rounded_to<T>(sums);
    store(out + i, rounded_to<T>(sums * sigmoid(sums)));
  }
}

// The last inputs of these channels become the state. In ascending order a row is read before it is overwritten.
template <class T>
void remember(const GatedDelta<T>& g, int64_t first, int64_t count) {
  for (int64_t row = 0; row < g.taps - 1; ++row) {
    const int64_t position = g.m - (g.taps - 1) + row;
    memcpy(g.conv_state + row * g.channels() + first, g.inputs(position) + first, count * sizeof(T));
  }
}

// --- the rule ---------------------------------------------------------------------------------------------------

struct Token {
  alignas(64) float q[kMaxDim], k[kMaxDim], v[kMaxDim];
  float key_query, decay, beta;
};

// Columns [c, c + C vectors) of one head's state and their outputs. Meanwhile `next`, as far behind as this state is
// long, is fetched: without it the memory would rest while the state is written.
template <int C>
void update_columns(float* state, const Token& token, int64_t key_dim, int64_t value_dim, int64_t c, float* out) {
  vec by_key[C] = {}, by_query[C] = {};
  for (int64_t i = 0; i < key_dim; ++i)
    for (int j = 0; j < C; ++j) {
      const vec value = load(state + i * value_dim + c + j * kLanes);
      by_key[j] += value * token.k[i];
      by_query[j] += value * token.q[i];
    }
  vec correction[C];
  for (int j = 0; j < C; ++j) {
    correction[j] = (load(token.v + c + j * kLanes) - by_key[j] * token.decay) * token.beta;
    store(out + c + j * kLanes, by_query[j] * token.decay + correction[j] * token.key_query);
  }
  const float* next = state + key_dim * value_dim + c;
  for (int64_t i = 0; i < key_dim; ++i)
    for (int j = 0; j < C; ++j) {
      float* place = state + i * value_dim + c + j * kLanes;
      __builtin_prefetch(next + i * value_dim + j * kLanes);
      store(place, load(place) * token.decay + correction[j] * token.k[i]);
    }
}

inline void update_state(float* state, const Token& token, int64_t key_dim, int64_t value_dim, float* out) {
  constexpr int kWide = kLanes == 16 ? 8 : 4;
  int64_t c = 0;
  for (; c + kWide * kLanes <= value_dim; c += kWide * kLanes)
    update_columns<kWide>(state, token, key_dim, value_dim, c, out);
  for (; c < value_dim; c += kLanes) update_columns<1>(state, token, key_dim, value_dim, c, out);
}

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// x / |x| times scale.
inline void normalize(float* x, int64_t size, float scale) {
  const float factor = scale / std::sqrt(sum_of_squares(x, size) + kL2Eps);
  for (int64_t i = 0; i < size; i += kLanes) store(x + i, load(x + i) * factor);
}

// out = norm(o), times silu of the gate.
template <class T>
void gated_norm(const GatedDelta<T>& g, const float* o, const T* gate, T* out) {
  const float inverse = inverse_rms(o, g.value_dim, g.eps);
  for (int64_t i = 0; i < g.value_dim; i += kLanes) {
    const vec normed = rounded_to<T>(rounded_to<T>(load(o + i) * inverse) * load(g.norm_weight + i));
    const vec z = load(gate + i);
    store(out + i, normed * (z * sigmoid(z)));
  }
}

// One value head at token t; q and k are its key head's.
template <class T>
void value_head(const GatedDelta<T>& g, int64_t t, int64_t head, Token& token) {
  alignas(64) float o[kMaxDim];
  convolve(g, t, g.value_channel(head), g.value_dim, token.v);
  token.beta = rounded_to<T>(sigmoid(broadcast(to_float(g.b[t * g.b_stride + head]))))[0];
  const float step = softplus(to_float(g.a[t * g.a_stride + head]) + g.dt_bias[head]);
  token.decay = std::exp(-std::exp(g.a_log[head]) * step);
  update_state(g.state + head * g.key_dim * g.value_dim, token, g.key_dim, g.value_dim, o);
  const int64_t column = head * g.value_dim, width = g.num_key_heads * g.group * g.value_dim;
  T* const out = g.out + t * width + column;
  if (g.norm_weight == nullptr) {
    for (int64_t i = 0; i < g.value_dim; i += kLanes) store(out + i, load(o + i));
    return;
  }
  for (int64_t i = 0; i < g.value_dim; i += kLanes) store(o + i, rounded_to<T>(load(o + i)));
  gated_norm(g, o, g.z + t * g.z_stride + column, out);
}

// All tokens of one key head and of the value heads that it serves.
template <class T>
void key_head(const GatedDelta<T>& g, int64_t head) {
  Token token;
  for (int64_t t = 0; t < g.m; ++t) {
    convolve(g, t, head * g.key_dim, g.key_dim, token.q);
    convolve(g, t, g.key_channel(head), g.key_dim, token.k);
    normalize(token.q, g.key_dim, 1.0f / std::sqrt(static_cast<float>(g.key_dim)));
    normalize(token.k, g.key_dim, 1.0f);
    vec products = {};
    for (int64_t i = 0; i < g.key_dim; i += kLanes) products += load(token.q + i) * load(token.k + i);
    token.key_query = sum(products);
    for (int64_t i = 0; i < g.group; ++i) value_head(g, t, head * g.group + i, token);
  }
  remember(g, head * g.key_dim, g.key_dim);
  remember(g, g.key_channel(head), g.key_dim);
  remember(g, g.value_channel(head * g.group), g.group * g.value_dim);
}

// Rows may have a stride; all else is contiguous. key_dim and value_dim are multiples of 16, at most 256.
template <class T>
void gated_delta_rule(const T* qkv, const T* z, const T* b, const T* a, int64_t qkv_stride, int64_t z_stride,
                      int64_t b_stride, int64_t a_stride, const T* conv_weight, const float* a_log,
                      const float* dt_bias, const T* norm_weight, double eps, T* conv_state, float* state, T* out,
                      int64_t m, int64_t num_key_heads, int64_t group, int64_t key_dim, int64_t value_dim,
                      int64_t taps, cpu_pool* pool) {
  const GatedDelta<T> g{qkv,         z,     b,       a,           qkv_stride, z_stride, b_stride, a_stride,
                        conv_weight, a_log, dt_bias, norm_weight, eps,        conv_state, state, out,
                        m,           num_key_heads,  group,       key_dim,    value_dim,  taps};
  for_each_share(pool, num_key_heads, [&](int64_t begin, int64_t end, int64_t) {
    for (int64_t head = begin; head < end; ++head) key_head(g, head);
  });
}

}  // namespace

EXPORT_KERNEL(gated_delta_rule_bf16, gated_delta_rule<bf16>)
EXPORT_KERNEL(gated_delta_rule_f32, gated_delta_rule<float>)
