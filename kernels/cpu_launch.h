// How a CPU kernel is started: its work split over the pool's threads, its arguments handed over by ctypes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cpu_pool.h"
#include "slots.h"

// [0, count) in contiguous shares, one a thread: a thread's memory is one long run for the prefetchers. Shares differ by
// one at most and none is empty: where there is less work than threads, the last threads have no share.
struct Shares {
  int64_t count, num_shares;

  Shares(int64_t count, int64_t num_threads) : count(count), num_shares(num_threads < count ? num_threads : count) {}
  int64_t begin(int64_t share) const { return count * share / num_shares; }
  int64_t end(int64_t share) const { return begin(share + 1); }
  int64_t owner(int64_t index) const { return ((index + 1) * num_shares - 1) / count; }
};

inline int num_threads(const cpu_pool* pool) { return pool == nullptr ? 1 : pool->num_threads; }

// Calls body(begin, end, share) for each share of [0, count), on the pool's threads.
template <class Body>
void for_each_share(cpu_pool* pool, int64_t count, Body body) {
  struct Launch {
    Body* body;
    int64_t count;
  } launch{&body, count};
  const cpu_task task = [](void* argument, int thread, int num_threads) {
    const Launch& self = *static_cast<const Launch*>(argument);
    const Shares shares(self.count, num_threads);
    if (thread < shares.num_shares) (*self.body)(shares.begin(thread), shares.end(thread), int64_t{thread});
  };
  cpu_pool_run(pool, task, &launch);
}

// [begin, end).
struct Piece {
  int64_t begin = 0, end = 0;
};

// [0, count) in pieces that whoever is free takes next, each about a 2 x threads'th of what is left: the first are long,
// as prefetchers like them, the last so short that nobody waits long for the thread that took it. Pieces are odd
// multiples of `grain`, but for the last: a piece cut into `grain` streams of rows has them an odd number of rows apart,
// which spreads them over a cache's sets where a row is a power of two long.
class Pieces {
 public:
  Pieces(int64_t count, int64_t grain, int num_threads) : count_(count), grain_(grain), parts_(2 * num_threads) {}

  // Calls body(piece, next) for the pieces that this thread gets, so that the first lines of `next` can be fetched
  // while `piece` ends. The last one's next is empty.
  template <class Body>
  void take(Body body) {
    int64_t index = 0, begin = 0;
    const auto claim = [&] {  // every thread walks all pieces, and skips the others'
      const int64_t mine = next_.fetch_add(1, std::memory_order_relaxed);
      for (; index < mine && begin < count_; ++index) begin = end_of(begin);
      return begin < count_ ? Piece{begin, end_of(begin)} : Piece{};
    };
    for (Piece piece = claim(); piece.begin < piece.end;) {
      const Piece next = claim();
      body(piece, next);
      piece = next;
    }
  }

 private:
  int64_t end_of(int64_t begin) const {
    const int64_t left = count_ - begin, grains = left / (parts_ * grain_);
    return begin + std::min(left, (std::max<int64_t>(grains, 2) | 1) * grain_);
  }

  const int64_t count_, grain_, parts_;
  std::atomic<int64_t> next_{0};
};

// Calls body(piece, next) for pieces of [0, count), on the pool's threads.
template <class Body>
void for_each_piece(cpu_pool* pool, int64_t count, int64_t grain, Body body) {
  struct Launch {
    Body* body;
    Pieces pieces;
  } launch{&body, Pieces(count, grain, num_threads(pool))};
  const cpu_task task = [](void* argument, int, int) {
    Launch& self = *static_cast<Launch*>(argument);
    self.pieces.take(*self.body);
  };
  cpu_pool_run(pool, task, &launch);
}
