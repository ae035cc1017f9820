// out[m, n] = x[m, k] @ weight[n, k]^T + bias[n] for few rows of x, as fast as the weight can be read.
//
// Each weight is used once per row of x, so the product is bound by memory for m up to about 8, and all that counts is
// how the weight is read. A thread takes one contiguous range of rows after another, cut again into `num_streams` long
// runs of which it reads one row each in turns: a hardware prefetcher follows every run, which together keep more lines in flight
// than one run does (on a Sapphire Rapids core 8 runs read 1.3 times as fast as one; neighbouring rows do not help, as
// they share their pages). Software prefetch carries the runs across page ends, where hardware prefetchers stop.
//
// x is brought into the form that products take (simd.h) once a launch, and a line of the weight is widened once for all
// rows of x. Accumulates in fp32. With AVX-512 BF16 the products of a pair of columns are added before they meet the
// accumulator, and denormals count as zero: results differ from the other variants in the last bits.
#include <cstdint>
#include <cstring>

#include "cpu_launch.h"
#include "simd.h"

namespace {

constexpr int64_t kMaxRows = 8;
constexpr int64_t kMaxStreams = 8;
// Accumulators that the registers hold beside the operands: of 32 with AVX-512, of 16 with less.
constexpr int kAccumulators = kLanes == 16 ? 16 : 8;

template <class T>
struct Gemv {
  const Factor<T>* x;
  const T* weight;
  const T* bias;  // may be null
  void* out;
  void (*store_out)(void* out, int64_t index, float value);
  int64_t k, x_stride, out_stride, prefetch_bytes;
};

template <class Out>
void store_as(void* out, int64_t index, float value) {
  store(static_cast<Out*>(out) + index, broadcast(value), 1);
}

// The last columns, where less than a line is left.
template <class T>
vec add_tail(vec accumulator, const T* weight, const Factor<T>* x, int64_t count) {
  T padded[kPerLine<T>] = {};
  memcpy(padded, weight, count * sizeof(T));
  return add_line(accumulator, padded, x);
}

// Row `row` of the first stream and the rows `stream_rows`, 2 stream_rows, ... behind it, against M rows of x.
template <class T, int M, int Streams>
void one_row_of_each(const Gemv<T>& g, int64_t row, int64_t stream_rows) {
  const T* weight = g.weight + row * g.k;
  const int64_t stream = stream_rows * g.k;
  vec sums[Streams][M] = {};
  int64_t column = 0;
  for (; column + kPerLine<T> <= g.k; column += kPerLine<T>)
    for (int s = 0; s < Streams; ++s) {
      const T* line = weight + s * stream + column;
      __builtin_prefetch(reinterpret_cast<const char*>(line) + g.prefetch_bytes);
      for (int m = 0; m < M; ++m) sums[s][m] = add_line(sums[s][m], line, g.x + m * g.x_stride + column);
    }
  for (int s = 0; s < Streams; ++s)
    for (int m = 0; m < M; ++m) {
      const T* rest = weight + s * stream + column;
      if (column < g.k) sums[s][m] = add_tail(sums[s][m], rest, g.x + m * g.x_stride + column, g.k - column);
      const int64_t n = row + s * stream_rows;
      const float bias = g.bias == nullptr ? 0.0f : to_float(g.bias[n]);
      g.store_out(g.out, m * g.out_stride + n, sum(sums[s][m]) + bias);
    }
}

template <class T, int M, int Streams>
void rows(const Gemv<T>& g, int64_t begin, int64_t end) {
  const int64_t stream_rows = (end - begin) / Streams;
  for (int64_t row = begin; row < begin + stream_rows; ++row) one_row_of_each<T, M, Streams>(g, row, stream_rows);
  for (int64_t row = begin + Streams * stream_rows; row < end; ++row) one_row_of_each<T, M, 1>(g, row, 0);
}

template <class T>
using Rows = void (*)(const Gemv<T>&, int64_t begin, int64_t end);

// The most streams, up to `wanted`, whose sums stay in registers.
template <class T, int M>
Rows<T> with_streams(int64_t wanted) {
  if constexpr (8 * M <= kAccumulators)
    if (wanted >= 8) return rows<T, M, 8>;
  if constexpr (4 * M <= kAccumulators)
    if (wanted >= 4) return rows<T, M, 4>;
  if constexpr (2 * M <= kAccumulators)
    if (wanted >= 2) return rows<T, M, 2>;
  return rows<T, M, 1>;
}

template <class T>
Rows<T> pick(int64_t m, int64_t num_streams) {
  constexpr Rows<T> (*kByRows[kMaxRows])(int64_t) = {with_streams<T, 1>, with_streams<T, 2>, with_streams<T, 3>,
                                                     with_streams<T, 4>, with_streams<T, 5>, with_streams<T, 6>,
                                                     with_streams<T, 7>, with_streams<T, 8>};
  return kByRows[m - 1](num_streams);
}

// x [m, k] and out [m, n] have row strides in elements; weight [n, k] and bias [n] (or null) are contiguous. 1 <= m <= 8.
// scratch: m rows of k floats, k rounded up to 32.
// num_streams: 1, 2, 4 or 8 runs a thread, fewer where registers are too few. prefetch_bytes: how far ahead of a load
// its run is prefetched; 0 does nothing.
template <class T, class Out>
void gemv(const T* x, const T* weight, const T* bias, Out* out, float* scratch, int64_t m, int64_t n, int64_t k,
          int64_t x_stride, int64_t out_stride, int64_t num_streams, int64_t prefetch_bytes, cpu_pool* pool) {
  auto* factors = reinterpret_cast<Factor<T>*>(scratch);
  const int64_t stride = whole_lines(k, kPerLine<T>);
  for (int64_t row = 0; row < m; ++row) make_factors(x + row * x_stride, k, factors + row * stride);
  const Gemv<T> g{factors, weight, bias, out, store_as<Out>, k, stride, out_stride, prefetch_bytes};
  const Rows<T> kernel = pick<T>(m, num_streams);
  for_each_piece(pool, n, kMaxStreams, [&](int64_t begin, int64_t end) { kernel(g, begin, end); });
}

}  // namespace

EXPORT_KERNEL(gemv_bf16_bf16, gemv<bf16, bf16>)
EXPORT_KERNEL(gemv_bf16_f32, gemv<bf16, float>)
EXPORT_KERNEL(gemv_f32_f32, gemv<float, float>)
