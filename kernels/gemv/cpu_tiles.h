// The product for several rows of x by tiles (kernels/tiles.h): the 16 rows of a tile are those of 16 streams.
//
// A vector instruction multiplies a line of the weight with one row of x, so from three or four rows on multiplying
// takes longer than reading. Here 16 lines are multiplied with all rows at once, and they are the next lines of 16 streams,
// as hardware prefetchers like them: 16 neighbouring rows were read at 0.4 to 0.9 of that speed.
#pragma once

#include <tuple>
#include <utility>

#include "streams.h"
#include "tiles.h"

#if defined(HAVE_TILES)

template <class Out>
struct TiledGemv {
  Weight<bf16> weight;
  const bf16* bias;  // may be null
  const bf16* x;     // as make_x_tiles has it, x_rows >= m rows
  Out* out;
  int64_t m, x_rows, out_stride;
};

enum GemvTile { kSums, kWeights, kX };

template <int... Lane>
inline std::pair<vec_bits, vec_bits> in_turns(vec_bits a, vec_bits b, std::integer_sequence<int, Lane...>) {
  return {SHUFFLE(a, b, (Lane / 2 + Lane % 2 * kLanes)...),
          SHUFFLE(a, b, (kLanes / 2 + Lane / 2 + Lane % 2 * kLanes)...)};
}

// The words of M vectors in turns: of each its first one, then of each its second one, and so on. Every step brings
// those of the first and the second half in turns, and moves the number of a word's vector one bit down.
template <int M>
inline void interleave(vec_bits* vectors) {
  for (int step = 1; step < M; step *= 2) {
    vec_bits halves[M];
    std::copy_n(vectors, M, halves);
    for (int i = 0; i < M / 2; ++i)
      std::tie(vectors[2 * i], vectors[2 * i + 1]) = in_turns(halves[i], halves[i + M / 2], Lanes{});
  }
}

// [k rounded up to 32 columns, M], zeros behind x.
template <int M>
void make_x_tiles(const bf16* x, int64_t m, int64_t k, int64_t x_stride, bf16* tiles) {
  constexpr int64_t kStep = kPerRegister<bf16>;
  for (int64_t column = 0; column < whole_lines(k, kTileColumns); column += kStep, tiles += kStep * M) {
    vec_bits words[M] = {};
    for (int64_t row = 0; row < m; ++row) {
      const bf16* from = x + row * x_stride + column;
      if (column + kStep <= k)
        memcpy(words + row, from, sizeof words[row]);
      else if (column < k)
        memcpy(words + row, from, (k - column) * sizeof(bf16));
    }
    interleave<M>(words);
    memcpy(tiles, words, sizeof words);
  }
}

template <class Out>
inline void multiply_columns(const TiledGemv<Out>& g, const bf16* weights, int64_t stride, int64_t column) {
  load_tile<kX>(g.x + column * g.x_rows, g.x_rows * 2 * sizeof(bf16));
  load_tile<kWeights>(weights, stride * sizeof(bf16));
  multiply_tiles<kSums, kWeights, kX>();
}

// The columns from `column` on, of `rows` rows, where these are fewer than a tile has.
template <class Out>
inline void multiply_rest(const TiledGemv<Out>& g, const Turn<bf16>& turn, int64_t rows, int64_t column) {
  for (; column < g.weight.k; column += kTileColumns) {
    alignas(kLineBytes) bf16 padded[kTileRows][kTileColumns] = {};
    const int64_t bytes = std::min(g.weight.k - column, kTileColumns) * sizeof(bf16);
    for (int64_t s = 0; s < rows; ++s) memcpy(padded[s], turn.line(s, column), bytes);
    multiply_columns(g, padded[0], kTileColumns, column);
  }
}

template <class Out>
inline void store_sums(const TiledGemv<Out>& g, const Turn<bf16>& turn, int64_t rows) {
  alignas(kLineBytes) float sums[kTileRows][kTileRows] = {};
  store_tile<kSums>(sums, sizeof sums[0]);
  for (int64_t s = 0; s < rows; ++s) {
    const int64_t n = turn.row + s * turn.stream_rows;
    const float bias = g.bias == nullptr ? 0.0f : to_float(g.bias[n]);
    Out rounded[kTileRows];
    for (int64_t row = 0; row < kTileRows; row += kLanes) store(rounded + row, load(sums[s] + row) + bias);
    for (int64_t row = 0; row < g.m; ++row) g.out[row * g.out_stride + n] = rounded[row];
  }
}

template <class Out>
Piece multiply_piece(const TiledGemv<Out>& g, Piece piece, Claims& claims) {
  const int64_t pairs = g.x_rows * 2 * sizeof(bf16);
  const TileShapes shapes{{kTileRows, pairs}, {kTileRows, kTileBytes}, {kTileRows, pairs}};
  const auto multiply = [&](const Turn<bf16>& turn, const Turn<bf16>& ahead) {
    zero_tile<kSums>();
    const int64_t column = for_each_line<kTileRows>(g.weight, turn, ahead, [&](int64_t column, auto prefetch) {
      for (int s = 0; s < kTileRows; ++s) prefetch(s);
      multiply_columns(g, turn.line(0, column), turn.stream, column);
    });
    multiply_rest(g, turn, kTileRows, column);
    store_sums(g, turn, kTileRows);
  };
  const Piece next = for_each_turn<kTileRows>(g.weight, piece, &claims, multiply);
  const int64_t rows = (piece.end - piece.begin) % kTileRows;  // the last ones, side by side
  if (rows == 0) return next;
  const Turn<bf16> rest(g.weight, piece.end - rows, 1);
  zero_tile<kSums>();
  multiply_rest(g, rest, rows, 0);
  store_sums(g, rest, rows);
  return next;
}

// x, scratch and the rest as gemv (cpu.cpp) takes them, 2 <= m <= 8.
template <class Out>
void tiled_gemv(const Weight<bf16>& weight, const bf16* x, const bf16* bias, Out* out, float* scratch, int64_t m,
                int64_t n, int64_t x_stride, int64_t out_stride, cpu_pool* pool) {
  auto* tiles = reinterpret_cast<bf16*>(scratch);
  const int64_t x_rows = m <= 2 ? 2 : m <= 4 ? 4 : 8;
  (x_rows == 2 ? make_x_tiles<2> : x_rows == 4 ? make_x_tiles<4> : make_x_tiles<8>)(x, m, weight.k, x_stride, tiles);
  const TiledGemv<Out> g{weight, bias, tiles, out, m, x_rows, out_stride};
  for_each_piece(pool, n, kTileRows, [&](Piece piece, Claims& claims) { return multiply_piece(g, piece, claims); });
}

#endif
