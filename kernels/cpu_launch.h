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

 private:
  friend class Claims;

  int64_t end_of(int64_t begin) const {
    const int64_t left = count_ - begin, grains = left / (parts_ * grain_);
    return begin + std::min(left, (grains | 1) * grain_);
  }

  const int64_t count_, grain_, parts_;
  std::atomic<int64_t> next_{0};
};

// A thread's way through the pieces: it walks all of them, and skips those that others have claimed.
class Claims {
 public:
  explicit Claims(Pieces& pieces) : pieces_(pieces) {}

  // The next piece for this thread; an empty one when none is left.
  Piece next() {
    const int64_t mine = pieces_.next_.fetch_add(1, std::memory_order_relaxed);
    for (; index_ < mine && begin_ < pieces_.count_; ++index_) begin_ = pieces_.end_of(begin_);
    return begin_ < pieces_.count_ ? Piece{begin_, pieces_.end_of(begin_)} : Piece{};
  }

 private:
  Pieces& pieces_;
  int64_t index_ = 0, begin_ = 0;
};

// Calls body(piece, claims) for pieces of [0, count), on the pool's threads. Towards the end of a piece the body claims
// the next one, whose first lines it can then fetch, and returns that.
template <class Body>
void for_each_piece(cpu_pool* pool, int64_t count, int64_t grain, Body body) {
  struct Launch {
    Body* body;
    Pieces pieces;
  } launch{&body, Pieces(count, grain, num_threads(pool))};
  const cpu_task task = [](void* argument, int, int) {
    Launch& self = *static_cast<Launch*>(argument);
    Claims claims(self.pieces);
    for (Piece piece = claims.next(); piece.begin < piece.end;) piece = (*self.body)(piece, claims);
  };
  cpu_pool_run(pool, task, &launch);
}
