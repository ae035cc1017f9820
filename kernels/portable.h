// One source for three machines: nvcc compiles a gpu.cu for CUDA, hipcc for HIP, and any C++ compiler (-x c++) for the
// host, where each lane of a block is a fibre and the same kernel can be checked without a card.
//
// portable_device.h (CUDA, HIP) and portable_host.h supply the same primitives: indices, shared memory, barrier,
// shuffle, 16-byte loads, fp16, launch. This file adds what is alike everywhere: storage types, packs, sums over a
// wave, and which wave widths a library has. HIP keeps close enough to CUDA that the differences fit on a page:
//   * a wave has 32 lanes on CUDA and RDNA, 64 on gfx9: the width is a template parameter everywhere, and never
// assumed;
//   * CUDA's shuffles take a mask of lanes; HIP's `_sync` forms came late and take 64 bits: those without are in all
// versions;
//   * bf16 is widened by a shift of raw bits, since old HIP has no header for it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

// What one lane moves by one 128-bit instruction. 32 lanes take 512 contiguous bytes. Where those begin with a line of
// 128 bytes they are four whole lines, which the memory controller serves by the fewest transactions per byte
// (coalescing); else they touch a fifth. Rows whose size is no multiple of 128 bytes begin anywhere in a line.
struct alignas(16) Pack {
  uint32_t words[4];
};

// Storage types; all arithmetic is fp32.
struct bf16 {
  uint16_t bits;  // the upper half of the fp32 of the same value
};
struct f16 {
  uint16_t bits;  // IEEE binary16
};

struct Grid {
  int64_t x = 1, y = 1, z = 1;
};

// Negative results of a launch: what the kernel refused. Positive ones are the runtime's.
enum Refusal : int { kBadWave = -1, kBadSize = -2, kBadAlignment = -3, kBadParameter = -4 };

#if defined(__HIP__) || defined(__HIPCC__) || defined(__CUDACC__)
#include "portable_device.h"
#else
#include "portable_host.h"
#endif

extern "C" const char* gpu_error_text(int code) {
  switch (code) {
    case kBadWave: return "the library has no kernels for this wave width";
    case kBadSize: return "a size is outside of what the kernel takes";
    case kBadAlignment: return "an address or a stride is not a multiple of 16 bytes";
    case kBadParameter: return "a tuning parameter has a value that the kernel was not built for";
    default: return runtime_error_text(code);
  }
}

// --- storage ---------------------------------------------------------------------------------------------------

template <class T>
constexpr int kPackSize = sizeof(Pack) / sizeof(T);

DEVICE float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

DEVICE float to_float(float value) { return value; }
DEVICE float to_float(bf16 value) { return float_of_bits(uint32_t{value.bits} << 16); }
DEVICE float to_float(f16 value) { return half_to_float(value.bits); }

// Rounded to nearest even; a NaN stays one, where the carry of the rounding could turn it into an infinity.
template <class T>
DEVICE T from_float(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    const uint32_t bits = bits_of(value);
    return {static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  } else if constexpr (std::is_same_v<T, f16>) {
    return {float_to_half(value)};
  } else {
    return value;
  }
}

// The value as it would come back from a T: for sums that the reference model rounds in between.
template <class T>
DEVICE float rounded_to(float value) {
  return to_float(from_float<T>(value));
}

template <class T>
DEVICE void unpack(const Pack& pack, float (&values)[kPackSize<T>]) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = pack.words[i];
    if constexpr (std::is_same_v<T, bf16>) {  // the even element is the lower half (little endian)
      values[2 * i] = float_of_bits(word << 16);
      values[2 * i + 1] = float_of_bits(word & 0xffff0000u);
    } else if constexpr (std::is_same_v<T, f16>) {
      values[2 * i] = half_to_float(static_cast<uint16_t>(word));
      values[2 * i + 1] = half_to_float(static_cast<uint16_t>(word >> 16));
    } else {
      values[i] = float_of_bits(word);
    }
  }
}

inline bool is_aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % sizeof(Pack) == 0; }

// --- across lanes ----------------------------------------------------------------------------------------------

// The sum over each team of kTeam neighbouring lanes, in all of them: lanes swap with a partner 1, 2, 4, ... away, so
// it takes log2(kTeam) steps and no shared memory. Every lane of the wave must take part.
template <int kWave, int kTeam = kWave>
DEVICE float team_sum(float value) {
  static_assert(kTeam <= kWave, "a team lies within a wave");
  UNROLL for (int distance = kTeam / 2; distance > 0; distance /= 2) value += shuffle_xor<kWave>(value, distance);
  return value;
}

// Counts a launch, once for its whole grid, where `calls` is not null. A captured graph replays kernels and none of the
// code that launched them: only a kernel itself can say how often it ran.
DEVICE void count_call(int64_t* calls) {
  if (calls != nullptr && thread_index() == 0 && block_index_x() == 0 && block_index_y() == 0 && block_index_z() == 0)
    add_one(calls);
}

// --- launches --------------------------------------------------------------------------------------------------

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls body(Constant<value>) for the first of the values that is at least `wanted`; a template is needed for each.
template <int kFirst, int... kRest, class Body>
int with_at_least(int64_t wanted, Body body) {
  if (wanted <= kFirst) return body(Constant<kFirst>{});
  if constexpr (sizeof...(kRest) > 0) return with_at_least<kRest...>(wanted, body);
  return kBadSize;
}

// Calls body(Constant<wave>), or refuses a width that this build does not have (GPU_WAVE; the host has both).
template <class Body>
int with_wave(int64_t wave, Body body) {
  if constexpr (has_wave(32))
    if (wave == 32) return body(Constant<32>{});
  if constexpr (has_wave(64))
    if (wave == 64) return body(Constant<64>{});
  return kBadWave;
}

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
