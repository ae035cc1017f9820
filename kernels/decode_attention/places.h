// Where the keys and values of a request lie, and in which order a thread reads them.
//
// A stretch of one head's places is cut into a few long streams, whose places are taken in turns, as in kernels/gemv: a
// hardware prefetcher follows each of them, and together they keep more lines in flight than software prefetches alone
// can, which only carry a stream across the ends of pages, where hardware prefetchers stop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"

constexpr int64_t kBlock = 128;  // places that are scored, and whose values are added, in one go

// Where places lie: in whole, or in blocks of 2^block_log2 places whose numbers a table lists in turn.
struct Cache {
  const int32_t* block_table;  // null: one block, the first, holds all
  int64_t block_log2;
  int64_t block_stride, head_stride;  // elements from one block, and from one head, to the next
};

constexpr int64_t kWhole = 62;  // no place is that far

template <class T>
struct Attention {
  const T* q;        // [num_kv_heads, group, head_dim]
  const T* k_cache;  // head_dim elements a place, one place behind the other within a block
  const T* v_cache;
  Cache cache;  // of either
  T* out;       // as q
  int64_t num_kv_heads, group, head_dim, context, streams_log2, prefetch_bytes;
  float scale;
  // One slot a stretch: group x width weighted values in wide order (simd.h), then the group's maxima, then its sums.
  float* scratch;

  // Of a head's queries and weighted values: whole lines.
  int64_t width() const { return whole_lines(head_dim, kPerLine<bf16>); }

  const T* keys(int64_t head, int64_t place) const {
    const int64_t block = cache.block_table == nullptr ? 0 : cache.block_table[place >> cache.block_log2];
    const int64_t within = place & ((int64_t{1} << cache.block_log2) - 1);
    return k_cache + block * cache.block_stride + head * cache.head_stride + within * head_dim;
  }

  void prefetch(const T* line) const { __builtin_prefetch(reinterpret_cast<const char*>(line) + prefetch_bytes); }

  // Along the line of all places head or share grows by one from each stretch to the next, so head + share numbers
  // them, and num_kv_heads + num_threads - 1 slots are enough.
  float* slot(int64_t head, int64_t share) const { return scratch + (head + share) * group * (width() + 2); }
  float* maxima(float* slot) const { return slot + group * width(); }
  float* sums(float* slot) const { return slot + group * (width() + 1); }
};

// Of at most kBlock places: where their keys lie. The last one stands in for those that are missing.
template <class T>
struct Block {
  const T* keys[kBlock];
  int64_t count;

  // The same number of places of each stream, in turns; stream_places from one stream to the next.
  Block(const Attention<T>& a, int64_t head, int64_t first, int64_t stream_places, int64_t streams_log2, int64_t count)
      : count(count) {
    const int64_t streams = int64_t{1} << streams_log2;
    for (int64_t s = 0; s < streams; ++s) {
      const int64_t start = first + s * stream_places;
      const T* whole = a.keys(head, start);
      for (int64_t i = s, turn = 0; i < count; i += streams, ++turn)
        keys[i] = a.cache.block_table == nullptr ? whole + turn * a.head_dim : a.keys(head, start + turn);
    }
    std::fill(keys + count, keys + kBlock, keys[count - 1]);
  }
};
