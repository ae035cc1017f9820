// A kernel's arguments, handed over as one array of 8-byte slots.
//
// ctypes takes some 50 ns an argument: 1 us for a kernel of twenty, some hundred times a decode step. So the arguments,
// which do not change from step to step, are written once into slots of 8 bytes, and a launch passes their address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

template <class T>
T from_slot(uint64_t slot) {
  static_assert(sizeof(T) == sizeof slot, "a kernel's arguments are pointers, int64_t, uint64_t and double");
  T value;
  memcpy(&value, &slot, sizeof value);
  return value;
}

template <class Result, class... Arguments, size_t... I>
Result call_with_slots(Result (*kernel)(Arguments...), const uint64_t* slots, std::index_sequence<I...>) {
  return kernel(from_slot<Arguments>(slots[I])...);
}

template <class Result, class... Arguments>
Result call_with_slots(Result (*kernel)(Arguments...), const uint64_t* slots) {
  return call_with_slots(kernel, slots, std::index_sequence_for<Arguments...>{});
}

// EXPORT_KERNEL(name, function) exports a function of pointers, sizes and a pool or stream as `name(slots)`, with its
// result. Variadic, since the function may have template arguments with commas between.
#define EXPORT_KERNEL(name, ...)                                                           \
  extern "C" decltype(call_with_slots(__VA_ARGS__, nullptr)) name(const uint64_t* slots) { \
    return call_with_slots(__VA_ARGS__, slots);                                            \
  }
