// out[m, n] = x[m, k] @ weight[n, k]^T + bias[n] for few rows of x, as fast as the weight can be read.
//
// Each weight is used once per row of x, so the product is bound by memory for m up to about 8, and all that counts is
// how the weight is read: streams.h.
//
// x is brought into the form that products take (simd.h) once a launch, and a line of the weight is widened once for all
// rows of x. Accumulates in fp32. With AVX-512 BF16 the products of a pair of columns are added before they meet the
// accumulator, and denormals count as zero: results differ from the other variants in the last bits. Several rows of x
// are multiplied by tiles where there are some: cpu_tiles.h.
#include <cstdint>
#include <cstring>

#include "cpu_launch.h"
#include "cpu_tiles.h"
#include "simd.h"
#include "streams.h"

namespace {

constexpr int64_t kMaxRows = 8;
constexpr int64_t kMaxStreams = 8;
// Accumulators that the registers hold beside the operands: of 32 with AVX-512, of 16 with less.
constexpr int kAccumulators = kLanes == 16 ? 16 : 8;

template <class T>
struct Gemv {
  Weight<T> weight;
  const T* bias;  // may be null
  const Factor<T>* x;
  void* out;
  void (*store_out)(void* out, int64_t index, float value);
  int64_t x_stride, out_stride;
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

// A row of each stream against M rows of x.
template <class T, int M, int Streams>
void one_row_of_each(const Gemv<T>& g, const Turn<T>& turn, const Turn<T>& ahead) {
  vec sums[Streams][M] = {};
  const int64_t column = for_each_line<Streams>(g.weight, turn, ahead, [&](int64_t column, auto prefetch) {
    for (int s = 0; s < Streams; ++s) {
      prefetch(s);
      for (int m = 0; m < M; ++m)
        sums[s][m] = add_line(sums[s][m], turn.line(s, column), g.x + m * g.x_stride + column);
    }
  });
  const int64_t rest = g.weight.k - column;
  for (int s = 0; s < Streams; ++s)
    for (int m = 0; m < M; ++m) {
      if (rest > 0) sums[s][m] = add_tail(sums[s][m], turn.line(s, column), g.x + m * g.x_stride + column, rest);
      const int64_t n = turn.row + s * turn.stream_rows;
      const float bias = g.bias == nullptr ? 0.0f : to_float(g.bias[n]);
      g.store_out(g.out, m * g.out_stride + n, sum(sums[s][m]) + bias);
    }
}

// The streams, then the few rows that they leave.
template <class T, int M, int Streams>
Piece multiply_rows(const Gemv<T>& g, Piece piece, Claims& claims) {
  const Piece next = for_each_turn<Streams>(g.weight, piece, &claims, [&](const Turn<T>& turn, const Turn<T>& ahead) {
    one_row_of_each<T, M, Streams>(g, turn, ahead);
  });
  const Piece rest{piece.end - (piece.end - piece.begin) % Streams, piece.end};
  for_each_turn<1>(g.weight, rest, nullptr, [&](const Turn<T>& turn, const Turn<T>& ahead) {
    one_row_of_each<T, M, 1>(g, turn, ahead);
  });
  return next;
}

template <class T>
using Kernel = Piece (*)(const Gemv<T>&, Piece piece, Claims& claims);

// The most streams, up to `wanted`, whose sums stay in registers.
template <class T, int M>
Kernel<T> with_streams(int64_t wanted) {
  if constexpr (8 * M <= kAccumulators)
    if (wanted >= 8) return multiply_rows<T, M, 8>;
  if constexpr (4 * M <= kAccumulators)
    if (wanted >= 4) return multiply_rows<T, M, 4>;
  if constexpr (2 * M <= kAccumulators)
    if (wanted >= 2) return multiply_rows<T, M, 2>;
  return multiply_rows<T, M, 1>;
}

template <class T>
Kernel<T> pick(int64_t m, int64_t num_streams) {
  constexpr Kernel<T> (*kByRows[kMaxRows])(int64_t) = {with_streams<T, 1>, with_streams<T, 2>, with_streams<T, 3>,
                                                     with_streams<T, 4>, with_streams<T, 5>, with_streams<T, 6>,
                                                     with_streams<T, 7>, with_streams<T, 8>};
  return kByRows[m - 1](num_streams);
}

// x [m, k] and out [m, n] have row strides in elements; weight [n, k] and bias [n] (or null) are contiguous. 1 <= m <= 8.
// scratch: m rows of k floats, k rounded up to 32.
// num_streams: 1, 2, 4 or 8 runs a thread, fewer where registers are too few; tiles have 16. prefetch_bytes: how far
// ahead of a load its run is prefetched, a row at most; 0 fetches nothing ahead.
template <class T, class Out>
void gemv(const T* x, const T* weight, const T* bias, Out* out, float* scratch, int64_t m, int64_t n, int64_t k,
          int64_t x_stride, int64_t out_stride, int64_t num_streams, int64_t prefetch_bytes, cpu_pool* pool) {
  const Weight<T> weight_rows{weight, k, prefetch_bytes};
#if defined(HAVE_TILES)
  if constexpr (std::is_same_v<T, bf16>)
    if (m > 1 && tiles_usable())
      return tiled_gemv(weight_rows, x, bias, out, scratch, m, n, x_stride, out_stride, pool);
#endif
  auto* factors = reinterpret_cast<Factor<T>*>(scratch);
  const int64_t stride = whole_lines(k, kPerLine<T>);
  for (int64_t row = 0; row < m; ++row) make_factors(x + row * x_stride, k, factors + row * stride);
  const Gemv<T> g{weight_rows, bias, factors, out, store_as<Out>, stride, out_stride};
  const Kernel<T> kernel = pick<T>(m, num_streams);
  for_each_piece(pool, n, kMaxStreams, [&](Piece piece, Claims& claims) { return kernel(g, piece, claims); });
}

}  // namespace

EXPORT_KERNEL(gemv_bf16_bf16, gemv<bf16, bf16>)
EXPORT_KERNEL(gemv_bf16_f32, gemv<bf16, float>)
EXPORT_KERNEL(gemv_f32_f32, gemv<float, float>)
