// How a CPU kernel is started: its work split over the pool's threads, its arguments handed over by ctypes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu_pool.h"

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

// [0, count) in more pieces than threads, each taken by whoever is free: for launches so short that a thread which is
// slowed for some microseconds would keep all others waiting. A piece is still long enough for the prefetchers.
template <class Body>
void for_each_piece(cpu_pool* pool, int64_t count, int64_t pieces_per_thread, Body body) {
  struct Launch {
    Body* body;
    Shares pieces;
    std::atomic<int64_t> next;
  } launch{&body, Shares(count, num_threads(pool) * pieces_per_thread), {0}};
  const cpu_task task = [](void* argument, int, int) {
    Launch& self = *static_cast<Launch*>(argument);
    for (int64_t piece; (piece = self.next.fetch_add(1, std::memory_order_relaxed)) < self.pieces.num_shares;)
      (*self.body)(self.pieces.begin(piece), self.pieces.end(piece));
  };
  cpu_pool_run(pool, task, &launch);
}

// ctypes takes some 50 ns an argument: 1 us for a kernel of twenty, some hundred times a decode step. So the arguments,
// which do not change from step to step, are written once into slots of 8 bytes, and a launch passes their address.
template <class T>
T from_slot(uint64_t slot) {
  static_assert(sizeof(T) == sizeof slot, "a kernel's arguments are pointers, int64_t and double");
  T value;
  memcpy(&value, &slot, sizeof value);
  return value;
}

template <class... Arguments, size_t... I>
void call_with_slots(void (*kernel)(Arguments...), const uint64_t* slots, std::index_sequence<I...>) {
  kernel(from_slot<Arguments>(slots[I])...);
}

template <class... Arguments>
void call_with_slots(void (*kernel)(Arguments...), const uint64_t* slots) {
  call_with_slots(kernel, slots, std::index_sequence_for<Arguments...>{});
}

// EXPORT_KERNEL(name, function) exports a function of pointers, sizes and a pool as `name(slots)`. Variadic, since the
// function may have template arguments with commas between.
#define EXPORT_KERNEL(name, ...) \
  extern "C" void name(const uint64_t* slots) { call_with_slots(__VA_ARGS__, slots); }
