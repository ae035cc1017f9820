// The gated delta rule between its projections, one decode step of one request: a short causal convolution over
// queries, keys and values, the rule on a state that stays in place, and a norm whose output is gated. As cpu.cpp, with
// m = 1:
//
//   correction = beta (v - decay S^T k);   o = decay S^T q + (k . q) correction;   S = decay S + k correction^T
//
// S [key_dim, value_dim] in fp32, one a value head, is most of what a step touches. The rule treats its columns apart,
// so a block takes kColumns of them: one line of 128 bytes of each row, so that a few heads keep all of a card busy. A
// lane holds its packs of S in registers from the one read to the one write. Blocks of a head each compute its q and k:
// some hundred values, from the caches.
//
// S is not loaded or stored as streaming, as gemv's weights are: what is read is written back by the same lane, and
// read again in the next step, so it may stay in a cache that is large enough. Nor are there parameters to tune as
// there. A lane asks for all of its rows at once, before anything else: there is no next turn to buffer, and no number
// of rows to choose. Rows can't be split between blocks: the correction needs the sum over all of them, after the read
// and before the write, so that blocks would wait for each other or read S twice.
//
// The norm needs a whole head, and the convolution's state may move on only after all blocks have read it: a second
// kernel does both.
#include "../portable.h"
#include "../slots.h"

namespace {

constexpr int kThreads = 256;
constexpr int kMaxDim = 256;
constexpr int kColumns = 32;
constexpr int kPacksAcross = kColumns * sizeof(float) / sizeof(Pack), kRowsAtOnce = kThreads / kPacksAcross;
constexpr int kMaxPacks = kMaxDim / kRowsAtOnce;  // of one lane
constexpr int64_t kMaxGridY = 65535;
constexpr float kL2Eps = 1e-6f;

template <class T>
struct GatedDelta {
  const T *qkv, *z, *b, *a;      // [2 key heads' widths + value heads' widths], [values], [value heads] x 2
  const T* conv_weight;          // [channels, taps], the newest tap last
  const float *a_log, *dt_bias;  // [value heads]
  const T* norm_weight;          // [value_dim]
  float eps;
  T* conv_state;  // [taps - 1, channels], the oldest first
  float* state;   // [value heads, key_dim, value_dim]
  T* out;         // [value heads, value_dim]
  float* rule_out;  // [value heads, value_dim]
  int64_t num_key_heads, group, key_dim, value_dim, taps;

  DEVICE_MEMBER int64_t channels() const { return num_key_heads * (2 * key_dim + group * value_dim); }
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// The sum of all lanes' values in all lanes, by a tree over shared memory (kThreads floats): two barriers more than
// lanes of a wave would need, and the same for any wave width.
DEVICE float block_sum(float value, float* shared) {
  barrier();  // whoever still reads an earlier sum
  shared[thread_index()] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    barrier();
    if (thread_index() < half) shared[thread_index()] += shared[thread_index() + half];
  }
  barrier();
  return shared[0];
}

// silu of the causal convolution of one channel, rounded where the reference model rounds.
template <class T>
DEVICE float convolved(const GatedDelta<T>& g, int64_t channel) {
  const T* weight = g.conv_weight + channel * g.taps;
  float sum = 0.0f;
  for (int64_t tap = 0; tap < g.taps - 1; ++tap)
    sum += to_float(g.conv_state[tap * g.channels() + channel]) * to_float(weight[tap]);
  sum = rounded_to<T>(sum + to_float(g.qkv[channel]) * to_float(weight[g.taps - 1]));
  return rounded_to<T>(sum * sigmoid(sum));
}

// What a block shares.
struct Shared {
  float q[kMaxDim], k[kMaxDim], v[kColumns], correction[kColumns];
  float sums[kThreads];
  // S^T k and S^T q of each column, a part of them from each of the rows that are read at once.
  float by_key[kRowsAtOnce][kColumns], by_query[kRowsAtOnce][kColumns];
};

// to = the convolved channels from `first` on, of unit length, times scale.
template <class T>
DEVICE void unit_vector(const GatedDelta<T>& g, int64_t first, float scale, float* to, float* sums) {
  const int i = thread_index();
  const float value = i < g.key_dim ? convolved(g, first + i) : 0.0f;
  const float factor = scale / sqrtf(block_sum(value * value, sums) + kL2Eps);
  if (i < g.key_dim) to[i] = value * factor;
}

template <class T>
KERNEL(kThreads) update_state(GatedDelta<T> g) {
  Shared& shared = *shared_memory<Shared>();
  const int64_t head = block_index_y(), key_head = head / g.group, first = block_index_x() * kColumns;
  const int lane = thread_index(), across = lane % kPacksAcross, row = lane / kPacksAcross;
  const int64_t num_columns = g.value_dim - first < kColumns ? g.value_dim - first : kColumns;
  float* state = g.state + head * g.key_dim * g.value_dim + first + across * kPackSize<float>;
  const bool has_column = across * kPackSize<float> < num_columns;

  // Asked for first, and used last: S is on its way while q, k and v are computed.
  Pack packs[kMaxPacks];
  UNROLL for (int i = 0; i < kMaxPacks; ++i) {
    const int64_t r = row + i * kRowsAtOnce;
    packs[i] = has_column && r < g.key_dim ? load_pack(state + r * g.value_dim) : Pack{};
  }
  unit_vector(g, key_head * g.key_dim, 1.0f / sqrtf(static_cast<float>(g.key_dim)), shared.q, shared.sums);
  unit_vector(g, (g.num_key_heads + key_head) * g.key_dim, 1.0f, shared.k, shared.sums);
  if (lane < num_columns)
    shared.v[lane] = convolved(g, 2 * g.num_key_heads * g.key_dim + head * g.value_dim + first + lane);
  const float key_query = block_sum(lane < g.key_dim ? shared.q[lane] * shared.k[lane] : 0.0f, shared.sums);
  const float beta = rounded_to<T>(sigmoid(to_float(g.b[head])));
  const float decay = expf(-expf(g.a_log[head]) * softplus(to_float(g.a[head]) + g.dt_bias[head]));

  float by_key[kPackSize<float>] = {}, by_query[kPackSize<float>] = {};
  UNROLL for (int i = 0; i < kMaxPacks; ++i) {
    const int64_t r = row + i * kRowsAtOnce;
    if (r >= g.key_dim) continue;
    float values[kPackSize<float>];
    unpack<float>(packs[i], values);
    UNROLL for (int j = 0; j < kPackSize<float>; ++j) {
      by_key[j] += values[j] * shared.k[r];
      by_query[j] += values[j] * shared.q[r];
    }
  }
  UNROLL for (int j = 0; j < kPackSize<float>; ++j) {
    shared.by_key[row][across * kPackSize<float> + j] = by_key[j];
    shared.by_query[row][across * kPackSize<float> + j] = by_query[j];
  }
  barrier();
  if (lane < num_columns) {
    float recalled = 0.0f, asked = 0.0f;
    for (int i = 0; i < kRowsAtOnce; ++i) recalled += shared.by_key[i][lane], asked += shared.by_query[i][lane];
    const float correction = (shared.v[lane] - recalled * decay) * beta;
    shared.correction[lane] = correction;
    g.rule_out[head * g.value_dim + first + lane] = asked * decay + correction * key_query;
  }
  barrier();
  UNROLL for (int i = 0; i < kMaxPacks; ++i) {
    const int64_t r = row + i * kRowsAtOnce;
    if (!has_column || r >= g.key_dim) continue;
    Pack pack;
    UNROLL for (int j = 0; j < kPackSize<float>; ++j) {
      const float correction = shared.correction[across * kPackSize<float> + j];
      pack.words[j] = bits_of(float_of_bits(packs[i].words[j]) * decay + correction * shared.k[r]);
    }
    store_pack(state + r * g.value_dim, pack);
  }
}

// The state of one channel's convolution moves on by a token.
template <class T>
DEVICE void remember(const GatedDelta<T>& g, int64_t channel) {
  for (int64_t tap = 0; tap < g.taps - 1; ++tap) {
    const T* newer = tap + 1 < g.taps - 1 ? g.conv_state + (tap + 1) * g.channels() : g.qkv;
    g.conv_state[tap * g.channels() + channel] = newer[channel];
  }
}

// One block a value head: out = norm(o) times silu of the gate. The blocks share the convolution's channels.
template <class T>
KERNEL(kThreads) gate_and_remember(GatedDelta<T> g) {
  float* sums = shared_memory<float>();
  const int i = thread_index();
  const int64_t column = block_index_x() * g.value_dim + i;
  const float o = i < g.value_dim ? rounded_to<T>(g.rule_out[column]) : 0.0f;
  const float mean = block_sum(o * o, sums) / static_cast<float>(g.value_dim);
  if (i < g.value_dim) {
    const float unit = rounded_to<T>(o / sqrtf(mean + g.eps));
    const float normed = rounded_to<T>(unit * to_float(g.norm_weight[i])), gate = to_float(g.z[column]);
    g.out[column] = from_float<T>(normed * (gate * sigmoid(gate)));
  }
  for (int64_t channel = block_index_x() * kThreads + i; channel < g.channels(); channel += num_blocks_x() * kThreads)
    remember(g, channel);
}

// As cpu.cpp's, whose arguments these are, but m must be 1 (strides, between tokens, are not looked at), and scratch
// [value heads, value_dim] of floats comes before the stream. key_dim and value_dim are at most 256, value_dim a
// multiple of 4; conv_weight, conv_state and norm_weight are contiguous; state lies at a multiple of 16 bytes.
template <class T>
int gated_delta_rule(const T* qkv, const T* z, const T* b, const T* a, int64_t, int64_t, int64_t, int64_t,
                     const T* conv_weight, const float* a_log, const float* dt_bias, const T* norm_weight, double eps,
                     T* conv_state, float* state, T* out, int64_t m, int64_t num_key_heads, int64_t group,
                     int64_t key_dim, int64_t value_dim, int64_t taps, float* scratch, uint64_t stream) {
  const int64_t value_heads = num_key_heads * group;
  if (m != 1 || num_key_heads < 1 || group < 1 || value_heads > kMaxGridY || taps < 1) return kBadSize;
  if (key_dim < 1 || key_dim > kMaxDim || value_dim < 1 || value_dim > kMaxDim) return kBadSize;
  if (!is_aligned(state) || value_dim % kPackSize<float> != 0) return kBadAlignment;
  const GatedDelta<T> g{qkv,         z,     b,       a,           conv_weight, a_log,         dt_bias,
                        norm_weight, static_cast<float>(eps),     conv_state,  state,         out,
                        scratch,     num_key_heads,  group,       key_dim,     value_dim,     taps};
  const int error = launch(update_state<T>, {divide_up(value_dim, kColumns), value_heads}, kThreads, sizeof(Shared),
                           stream, g);
  if (error != 0) return error;
  return launch(gate_and_remember<T>, {value_heads}, kThreads, kThreads * sizeof(float), stream, g);
}

}  // namespace

EXPORT_KERNEL(gated_delta_rule_bf16, gated_delta_rule<bf16>)
EXPORT_KERNEL(gated_delta_rule_f16, gated_delta_rule<f16>)
EXPORT_KERNEL(gated_delta_rule_f32, gated_delta_rule<float>)
