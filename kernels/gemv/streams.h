// How a weight [n, k] is read: a piece of its rows as a few long streams, of which each gives one row in turns.
//
// A hardware prefetcher follows every stream, which together keep more lines in flight than one does (on a Sapphire
// Rapids core 8 streams read 1.3 times as fast as one; neighbouring rows do not help, as they share their pages).
// Software prefetch carries the streams across the ends of pages, where hardware prefetchers stop, and from the end of
// a piece into the thread's next one, which would otherwise begin with nothing under way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu_launch.h"
#include "simd.h"

template <class T>
struct Weight {
  const T* rows;  // [n, k], contiguous
  int64_t k, prefetch_bytes;
};

// One row of each stream: the first stream's, and how many rows on the next one's lies.
template <class T>
struct Turn {
  const T* first;
  int64_t row, stream_rows, stream;  // stream: stream_rows in elements

  Turn(const Weight<T>& weight, int64_t row, int64_t stream_rows)
      : first(weight.rows + row * weight.k), row(row), stream_rows(stream_rows), stream(stream_rows * weight.k) {}
  const T* line(int64_t s, int64_t column) const { return first + s * stream + column; }
};

// Calls body(turn, ahead) for the turns of a piece, and returns the piece that it claims before the last one; claims may be
// null. ahead: the turn that follows, at the end the first of the next piece. Behind the last piece nothing is to be
// fetched, and the row at hand stands in for it.
template <int Streams, class T, class Body>
inline Piece for_each_turn(const Weight<T>& weight, Piece piece, Claims* claims, Body body) {
  const int64_t stream_rows = (piece.end - piece.begin) / Streams, end = piece.begin + stream_rows;
  for (int64_t row = piece.begin; row + 1 < end; ++row)
    body(Turn<T>(weight, row, stream_rows), Turn<T>(weight, row + 1, stream_rows));
  const Piece next = claims == nullptr ? Piece{} : claims->next();
  if (stream_rows == 0) return next;
  const int64_t next_rows = (next.end - next.begin) / Streams;
  body(Turn<T>(weight, end - 1, stream_rows),
       next_rows > 0 ? Turn<T>(weight, next.begin, next_rows) : Turn<T>(weight, end - 1, 0));
  return next;
}

// Calls body(column, prefetch) for the whole lines of a turn; prefetch(s) is of stream s's line prefetch_bytes further on.
// Returns the first column behind them.
template <int Streams, class T, class Body>
[[gnu::always_inline]] inline int64_t for_each_line(const Weight<T>& weight, const Turn<T>& turn, const Turn<T>& ahead,
                                                    Body body) {
  const int64_t distance = std::min<int64_t>(weight.prefetch_bytes / sizeof(T), weight.k);
  int64_t column = 0;
  const auto lines = [&](int64_t end, const Turn<T>& fetched, int64_t offset) {
    for (; column + kPerLine<T> <= end; column += kPerLine<T>) {
      body(column, [&](int s) { __builtin_prefetch(fetched.line(s, column + offset)); });
    }
  };
  lines(weight.k - distance, turn, distance);
  lines(weight.k, ahead, distance - weight.k);
  return column;
}
