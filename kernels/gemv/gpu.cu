// out[m, n] = x[m, k] @ weight[n, k]^T + bias[n] for few rows of x, as fast as the card can read the weight.
//
// Each weight is used once per row of x, so all that counts is how the weight is read. A wave takes `rows_per_wave`
// rows of the weight and its lanes walk along them side by side, 128 bits each: 512 or 1024 contiguous bytes of every
// row at a time, as long as the row lasts. Each lane asks for kInFlight packs before it uses the first (rows x columns
// of them), and with double_buffer for the next turn's too, so that memory has work while the products are summed.
// What is less than such a turn, at the end of a row or part, is read by a pack of each row at a time: one shorter than
// a turn has only rows_per_wave packs a lane on their way, and one of fewer packs than lanes leaves lanes idle.
// Weights are loaded as streaming: read once, they would drive x out of the caches. x is small and read by all, so it
// comes from the caches, once for all rows of a wave: shared memory would cost a copy and a barrier to hold what the
// first-level cache holds anyway.
//
// split_k cuts the columns into parts with a wave each, for weights of too few rows to keep the card busy. Parts of
// aligned rows begin with lines of 128 bytes, counted from the row's begin, since two waves would each fetch a line
// that they share. Parts are summed by a second kernel in fixed order, never by atomics: the same inputs give the same
// bits.
//
// Rows that do not begin at a multiple of 16 bytes (a ragged k) are read by scalars up to the first such multiple and
// from the last one on, packs in between. x is then read by elements.
#include "../portable.h"
#include "../slots.h"

namespace {

constexpr int kMaxThreads = 256;  // larger blocks leave a lane fewer than 255 registers
constexpr int kMaxRows = 8;       // of x
constexpr int kMaxSums = 16;      // rows of x times rows of the weight: more sums spill from the registers
constexpr int kInFlight = 4;
constexpr int kLinePacks = 128 / sizeof(Pack);
constexpr int kCombineThreads = 256;
constexpr int64_t kMaxSplits = 64;

template <class T>
struct Gemv {
  const T* x;
  const T* weight;
  const T* bias;  // may be null
  void* out;
  float* partials;  // [split_k, m, n]; null without splits
  int64_t m, n, k, x_stride, out_stride, split_k, rows_per_wave;
  bool out_is_fp32;
  int64_t* calls;  // may be null
};

template <class T>
DEVICE void store_out(const Gemv<T>& g, int64_t m, int64_t n, float value) {
  if (g.bias != nullptr) value += to_float(g.bias[n]);
  const int64_t index = m * g.out_stride + n;
  if (g.out_is_fp32)
    static_cast<float*>(g.out)[index] = value;
  else
    static_cast<T*>(g.out)[index] = from_float<T>(value);
}

// A finished sum goes to the output, a part of one to the scratch.
template <class T>
DEVICE void store_sum(const Gemv<T>& g, int64_t m, int64_t n, float sum) {
  if (g.partials == nullptr)
    store_out(g, m, n, sum);
  else
    g.partials[(block_index_y() * g.m + m) * g.n + n] = sum;
}

// Where a part of `count` columns, packs or lines begins.
template <class T>
DEVICE int64_t split_begin(const Gemv<T>& g, int64_t count, int64_t split) { return count * split / g.split_k; }

// In packs, of an aligned row: whole lines to each part, or packs where there are fewer lines than parts, so that no
// part is empty for the sake of lines.
template <class T>
DEVICE int64_t part_begin(const Gemv<T>& g, int64_t split) {
  const int64_t num_packs = g.k / kPackSize<T>, num_lines = (num_packs + kLinePacks - 1) / kLinePacks;
  if (num_lines < g.split_k) return split_begin(g, num_packs, split);
  const int64_t begin = split_begin(g, num_lines, split) * kLinePacks;
  return begin < num_packs ? begin : num_packs;
}

// Rows beyond the last stand for it: their lanes load and add as the others do, and store nothing.
DEVICE int64_t clamped(int64_t index, int64_t count) { return index < count ? index : count - 1; }

// --- aligned rows ------------------------------------------------------------------------------------------------

// One turn of a lane: kColumns packs of kRows rows of the weight.
template <int kRows, int kColumns>
struct Turn {
  Pack weight[kRows][kColumns];
};

template <class T, int kWave, int kRows, int kColumns>
DEVICE void load_turn(const T* const (&rows)[kRows], int64_t pack, Turn<kRows, kColumns>& turn) {
  UNROLL for (int r = 0; r < kRows; ++r)
    UNROLL for (int c = 0; c < kColumns; ++c)
      turn.weight[r][c] = load_pack_streaming(rows[r] + (pack + c * kWave) * kPackSize<T>);
}

// sums[r][m] += one pack of row r times the same columns of x's row m.
template <class T, int kM, int kRows>
DEVICE void add_pack(const Gemv<T>& g, const Pack (&weight)[kRows], int64_t pack, float (&sums)[kRows][kM]) {
  UNROLL for (int m = 0; m < kM; ++m) {
    float x[kPackSize<T>];
    unpack<T>(load_pack(g.x + clamped(m, g.m) * g.x_stride + pack * kPackSize<T>), x);
    UNROLL for (int r = 0; r < kRows; ++r) {
      float w[kPackSize<T>];
      unpack<T>(weight[r], w);
      UNROLL for (int i = 0; i < kPackSize<T>; ++i) sums[r][m] += w[i] * x[i];
    }
  }
}

template <class T, int kM, int kWave, int kRows, int kColumns>
DEVICE void add_turn(const Gemv<T>& g, const Turn<kRows, kColumns>& turn, int64_t pack, float (&sums)[kRows][kM]) {
  UNROLL for (int c = 0; c < kColumns; ++c) {
    Pack weight[kRows];
    UNROLL for (int r = 0; r < kRows; ++r) weight[r] = turn.weight[r][c];
    add_pack(g, weight, pack + c * kWave, sums);
  }
}

template <class T, int kM, int kWave, int kRows, bool kDoubleBuffer>
KERNEL(kMaxThreads) gemv_rows(Gemv<T> g, int waves_per_block) {
  count_call(g.calls);
  constexpr int kColumns = kInFlight / kRows;
  constexpr int64_t kStep = kColumns * kWave;
  const int lane = thread_index() % kWave;
  const int64_t first = (block_index_x() * waves_per_block + thread_index() / kWave) * kRows;
  const T* rows[kRows];
  UNROLL for (int r = 0; r < kRows; ++r) rows[r] = g.weight + clamped(first + r, g.n) * g.k;
  float sums[kRows][kM] = {};

  const int64_t end = part_begin(g, block_index_y() + 1);
  int64_t base = part_begin(g, block_index_y());
  if constexpr (kDoubleBuffer) {
    // Two buffers in registers: while one is summed, the other's loads are on their way. The last turn loads again what
    // it has, rather than behind the row.
    if (base + kStep <= end) {
      Turn<kRows, kColumns> now, next;
      load_turn<T, kWave>(rows, base + lane, now);
      for (; base + kStep <= end; base += kStep) {
        const int64_t ahead = base + 2 * kStep <= end ? base + kStep : base;
        load_turn<T, kWave>(rows, ahead + lane, next);
        add_turn<T, kM, kWave>(g, now, base + lane, sums);
        now = next;
      }
    }
  } else {
    for (; base + kStep <= end; base += kStep) {
      Turn<kRows, kColumns> turn;
      load_turn<T, kWave>(rows, base + lane, turn);
      add_turn<T, kM, kWave>(g, turn, base + lane, sums);
    }
  }
  for (int64_t pack = base + lane; pack < end; pack += kWave) {  // less than a turn is left
    Turn<kRows, 1> turn;
    load_turn<T, kWave>(rows, pack, turn);
    add_turn<T, kM, kWave>(g, turn, pack, sums);
  }

  // One sum a lane, so that biases and outputs are one load and one store each.
  float mine = 0.0f;
  UNROLL for (int r = 0; r < kRows; ++r)
    UNROLL for (int m = 0; m < kM; ++m) {
      const float sum = team_sum<kWave>(sums[r][m]);
      if (lane == r * kM + m) mine = sum;
    }
  const int64_t m = lane % kM, n = first + lane / kM;
  if (lane < kRows * kM && m < g.m && n < g.n) store_sum(g, m, n, mine);
}

// --- ragged rows -------------------------------------------------------------------------------------------------

// sums[m] += the products of kCount columns from `column` on.
template <int kCount, class T, int kM>
DEVICE void add_elements(const Gemv<T>& g, const float (&weight)[kCount], int64_t column, float (&sums)[kM]) {
  UNROLL for (int m = 0; m < kM; ++m) {
    const T* x = g.x + clamped(m, g.m) * g.x_stride + column;
    UNROLL for (int i = 0; i < kCount; ++i) sums[m] += weight[i] * to_float(x[i]);
  }
}

template <class T, int kM>
DEVICE void add_element(const Gemv<T>& g, const T* row, int64_t column, float (&sums)[kM]) {
  const float weight[1] = {to_float(row[column])};
  add_elements<1>(g, weight, column, sums);
}

// Columns [begin, end) of one row.
template <class T, int kM, int kWave>
DEVICE void add_ragged(const Gemv<T>& g, const T* row, int64_t begin, int64_t end, float (&sums)[kM]) {
  const int lane = thread_index() % kWave;
  const int64_t past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row + begin) % sizeof(Pack)) / sizeof(T);
  int64_t packs_begin = begin + (past == 0 ? 0 : kPackSize<T> - past);
  if (packs_begin > end) packs_begin = end;
  const int64_t num_packs = (end - packs_begin) / kPackSize<T>, packs_end = packs_begin + num_packs * kPackSize<T>;
  for (int64_t pack = lane; pack < num_packs; pack += kWave) {
    const int64_t column = packs_begin + pack * kPackSize<T>;
    float weight[kPackSize<T>];
    unpack<T>(load_pack_streaming(row + column), weight);
    add_elements<kPackSize<T>>(g, weight, column, sums);
  }
  // Head and tail are shorter than a pack each.
  if (begin + lane < packs_begin) add_element(g, row, begin + lane, sums);
  if (packs_end + lane < end) add_element(g, row, packs_end + lane, sums);
}

template <class T, int kM, int kWave>
KERNEL(kMaxThreads) gemv_ragged(Gemv<T> g, int waves_per_block) {
  count_call(g.calls);
  const int64_t first = (block_index_x() * waves_per_block + thread_index() / kWave) * g.rows_per_wave;
  const int64_t begin = split_begin(g, g.k, block_index_y()), end = split_begin(g, g.k, block_index_y() + 1);
  for (int64_t n = first; n < first + g.rows_per_wave && n < g.n; ++n) {
    float sums[kM] = {};
    add_ragged<T, kM, kWave>(g, g.weight + n * g.k, begin, end, sums);
    UNROLL for (int m = 0; m < kM; ++m) {
      const float sum = team_sum<kWave>(sums[m]);
      if (thread_index() % kWave == 0 && m < g.m) store_sum(g, m, n, sum);
    }
  }
}

// --- launches ----------------------------------------------------------------------------------------------------

template <class T>
KERNEL(kCombineThreads) gemv_combine(Gemv<T> g) {
  const int64_t i = block_index_x() * kCombineThreads + thread_index();
  if (i >= g.m * g.n) return;
  float sum = 0.0f;
  for (int64_t split = 0; split < g.split_k; ++split) sum += g.partials[split * g.m * g.n + i];
  store_out(g, i / g.n, i % g.n, sum);
}

// Packs of weight and x can be taken from the same columns of all rows.
template <class T>
bool has_aligned_rows(const Gemv<T>& g) {
  return is_aligned(g.weight) && is_aligned(g.x) && g.k % kPackSize<T> == 0 && g.x_stride % kPackSize<T> == 0;
}

struct Shape {
  int64_t wave, waves_per_block;
  bool double_buffer;
  uint64_t stream;
};

template <class T, int kM, int kWave>
int launch_rows(const Gemv<T>& g, const Shape& shape) {
  const Grid grid{divide_up(g.n, shape.waves_per_block * g.rows_per_wave), g.split_k};
  const int waves = static_cast<int>(shape.waves_per_block);
  const auto start = [&](auto kernel) { return launch(kernel, grid, waves * kWave, 0, shape.stream, g, waves); };
  if (!has_aligned_rows(g)) return start(gemv_ragged<T, kM, kWave>);
  return with_at_least<1, 2, 4>(g.rows_per_wave, [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    if constexpr (kRows * kM <= kMaxSums)
      return shape.double_buffer ? start(gemv_rows<T, kM, kWave, kRows, true>)
                                 : start(gemv_rows<T, kM, kWave, kRows, false>);
    return int{kBadParameter};
  });
}

// x [m, k] and out [m, n] have row strides in elements; weight [n, k] and bias [n] (or null) are contiguous. 1 <= m <=
// 8. partials: split_k * m * n floats of scratch where split_k > 1, else not touched. wave: the card's width;
// rows_per_wave: 1, 2 or (for m <= 4) 4; waves_per_block: at most 256 lanes; split_k: 1 to 64; double_buffer: 0 or 1.
// calls: null, or a number on the card that every launch adds one to.
template <class T, bool kOutIsFp32>
int gemv(const T* x, const T* weight, const T* bias, void* out, float* partials, int64_t m, int64_t n, int64_t k,
         int64_t x_stride, int64_t out_stride, int64_t wave, int64_t rows_per_wave, int64_t waves_per_block,
         int64_t split_k, int64_t double_buffer, int64_t* calls, uint64_t stream) {
  if (m < 1 || m > kMaxRows || n < 1 || k < 1) return kBadSize;
  if (rows_per_wave != 1 && rows_per_wave != 2 && rows_per_wave != 4) return kBadParameter;
  if (waves_per_block < 1 || waves_per_block * wave > kMaxThreads) return kBadParameter;
  if (split_k < 1 || split_k > kMaxSplits || (double_buffer & ~int64_t{1}) != 0) return kBadParameter;
  const Gemv<T> g{x, weight,   bias,       out,     split_k > 1 ? partials : nullptr, m,     n,
                  k, x_stride, out_stride, split_k, rows_per_wave, kOutIsFp32,        calls};
  const Shape shape{wave, waves_per_block, double_buffer != 0, stream};
  const int error = with_wave(wave, [&](auto width) {
    return with_at_least<1, 2, 4, 8>(
        m, [&](auto rows) { return launch_rows<T, decltype(rows)::value, decltype(width)::value>(g, shape); });
  });
  if (error != 0 || split_k == 1) return error;
  return launch(gemv_combine<T>, {divide_up(m * n, kCombineThreads)}, kCombineThreads, 0, stream, g);
}

}  // namespace

EXPORT_KERNEL(gemv_bf16_bf16, gemv<bf16, false>)
EXPORT_KERNEL(gemv_bf16_f32, gemv<bf16, true>)
EXPORT_KERNEL(gemv_f16_f16, gemv<f16, false>)
EXPORT_KERNEL(gemv_f16_f32, gemv<f16, true>)
EXPORT_KERNEL(gemv_f32_f32, gemv<float, true>)
