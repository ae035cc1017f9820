// Vectors of fp32 as wide as the compiler's target has registers, loaded from and stored to bf16 or fp32.
//
// Written with the vector extensions of GCC and clang, so one source gives AVX-512, AVX2, SSE2 and NEON code, chosen
// by -march. All arithmetic is fp32; bf16 is a storage format, and every store to it rounds to nearest even.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

constexpr int64_t kLineBytes = 64;

struct bf16 {
  uint16_t bits;  // the upper half of the fp32 of the same value
};

typedef float vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vec_bits __attribute__((vector_size(kLanes * 4)));
typedef uint16_t vec_halves __attribute__((vector_size(kLanes * 2)));

inline vec broadcast(float value) { return value - vec{}; }

inline vec max(vec a, vec b) { return a > b ? a : b; }

// --- storage ---------------------------------------------------------------------------------------------------

inline vec load(const float* from) {
  vec value;
  memcpy(&value, from, sizeof value);
  return value;
}

// GCC makes the widening of two halves and an insertion unless it is told the instruction, and GCC 12 warns of its own
// header if that is the one without a mask.
inline vec_bits widened(const bf16* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<vec_bits>(_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
  return reinterpret_cast<vec_bits>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  vec_halves halves;
  memcpy(&halves, from, sizeof halves);
  return __builtin_convertvector(halves, vec_bits);
#endif
}

inline vec load(const bf16* from) { return reinterpret_cast<vec>(widened(from) << 16); }

inline float to_float(float value) { return value; }

inline float to_float(bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// Nearest even; a NaN stays one, where the carry of the rounding could turn it into an infinity or a zero.
inline vec_bits round_to_bf16(vec value) {
  const vec_bits bits = reinterpret_cast<vec_bits>(value);
  const vec_bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return value != value ? (bits >> 16) | 0x40 : rounded;
}

inline void store(float* to, vec value) { memcpy(to, &value, sizeof value); }

inline void store(bf16* to, vec value) {
  const vec_halves halves = __builtin_convertvector(round_to_bf16(value), vec_halves);
  memcpy(to, &halves, sizeof halves);
}

// The value as it would come back from a T: for sums and products that the reference model rounds in between.
template <class T>
vec rounded_to(vec value);
template <>
inline vec rounded_to<float>(vec value) {
  return value;
}
template <>
inline vec rounded_to<bf16>(vec value) {
  return reinterpret_cast<vec>(round_to_bf16(value) << 16);
}

// The ragged end of a row: the first `count` lanes (all of them where more are left), zeros behind.
template <class T>
inline vec load(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T lanes[kLanes] = {};
  memcpy(lanes, from, count * sizeof(T));
  return load(lanes);
}

template <class T>
inline void store(T* to, vec value, int64_t count) {
  if (count >= kLanes) return store(to, value);
  T lanes[kLanes];
  store(lanes, value);
  memcpy(to, lanes, count * sizeof(T));
}

// --- whole registers -------------------------------------------------------------------------------------------

// A register's worth of T as fp32: one vector, or two of bf16. bf16 is taken apart where it stands: of each 32-bit word
// the lower half, shifted, is the one value and the upper half, cut off, the other. That is one operation a vector,
// where widening in order takes two; the first vector holds the values in even places, the second those in odd ones,
// which is all the same to a sum of products. "Wide order" is that of a register after a register so taken apart.
template <class T>
constexpr int kVecs = sizeof(float) / sizeof(T);
template <class T>
constexpr int64_t kPerRegister = kLanes * kVecs<T>;
template <class T>
struct Wide {
  vec v[kVecs<T>];
};

inline Wide<float> load_wide(const float* from) { return {{load(from)}}; }

inline Wide<bf16> load_wide(const bf16* from) {
  vec_bits words;
  memcpy(&words, from, sizeof words);
  return {{reinterpret_cast<vec>(words << 16), reinterpret_cast<vec>(words & 0xffff0000)}};
}

inline void store_wide(float* to, Wide<float> value) { store(to, value.v[0]); }

inline void store_wide(bf16* to, Wide<bf16> value) {
  const vec_bits words = round_to_bf16(value.v[0]) | round_to_bf16(value.v[1]) << 16;
  memcpy(to, &words, sizeof words);
}

// The ragged end, as above.
template <class T>
inline Wide<T> load_wide(const T* from, int64_t count) {
  if (count >= kPerRegister<T>) return load_wide(from);
  T padded[kPerRegister<T>] = {};
  memcpy(padded, from, count * sizeof(T));
  return load_wide(padded);
}

template <class T>
inline void store_wide(T* to, Wide<T> value, int64_t count) {
  if (count >= kPerRegister<T>) return store_wide(to, value);
  T padded[kPerRegister<T>];
  store_wide(padded, value);
  memcpy(to, padded, count * sizeof(T));
}

// --- products ---------------------------------------------------------------------------------------------------

// What a run of T is multiplied with: bf16 as it is where there is an instruction for it, else fp32 in T's wide order.
// A product's other side is used again and again, so it is brought into that form once, in whole lines.
template <class T>
constexpr int64_t kPerLine = kLineBytes / sizeof(T);
#if defined(__AVX512BF16__)
template <class T>
using Factor = T;
#else
template <class T>
using Factor = float;
#endif

inline int64_t whole_lines(int64_t count, int64_t per_line) { return (count + per_line - 1) / per_line * per_line; }

// x[0, count) as factors, zeros up to the end of a line of T.
template <class T>
inline void make_factors(const T* x, int64_t count, float* to) {
  for (int64_t i = 0; i < whole_lines(count, kPerLine<T>); i += kPerRegister<T>) {
    const Wide<T> value = load_wide(x + i, std::max(count - i, int64_t{0}));
    for (int part = 0; part < kVecs<T>; ++part) store(to + i + part * kLanes, value.v[part]);
  }
}

inline void make_factors(const bf16* x, int64_t count, bf16* to) {
  std::copy_n(x, count, to);
  std::fill(to + count, to + whole_lines(count, kPerLine<bf16>), bf16{});
}

// accumulator + the products of a register of T with its factors. With AVX-512 BF16 the products of a pair of columns
// are added before they meet the accumulator, and denormals count as zero.
template <class T>
inline vec add_register(vec accumulator, const T* a, const float* factors) {
  const Wide<T> value = load_wide(a);
  for (int part = 0; part < kVecs<T>; ++part) accumulator += value.v[part] * load(factors + part * kLanes);
  return accumulator;
}

#if defined(__AVX512BF16__)
inline vec add_register(vec accumulator, const bf16* a, const bf16* factors) {
  const auto pairs = [](const bf16* from) { return reinterpret_cast<__m512bh>(_mm512_loadu_si512(from)); };
  return _mm512_dpbf16_ps(accumulator, pairs(a), pairs(factors));
}
#endif

template <class T>
inline vec add_line(vec accumulator, const T* a, const Factor<T>* factors) {
  for (int64_t i = 0; i < kPerLine<T>; i += kPerRegister<T>) accumulator = add_register(accumulator, a + i, factors + i);
  return accumulator;
}

// --- across lanes ----------------------------------------------------------------------------------------------

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vec_bits{__VA_ARGS__})
#endif

using Lanes = std::make_integer_sequence<int, kLanes>;

template <int H, int... Lane>
inline vec swapped_halves(vec value, std::integer_sequence<int, Lane...>) {
  return SHUFFLE(value, value, (Lane ^ H)...);
}

// Combines halves, then quarters, ...: a tree, so that its depth and its rounding error grow like log2(kLanes).
template <int H = kLanes / 2, class Combine>
inline float reduce(vec value, Combine combine) {
  value = combine(value, swapped_halves<H>(value, Lanes{}));
  if constexpr (H > 1) return reduce<H / 2>(value, combine);
  return value[0];
}

inline float sum(vec value) {
  return reduce(value, [](vec a, vec b) { return a + b; });
}

inline float largest(vec value) {
  return reduce(value, [](vec a, vec b) { return max(a, b); });
}

// The sums of kLanes vectors at once, that of rows[i] in lane i; overwrites the rows. Each step adds the halves of two
// vectors and keeps both results in one: lanes with bit H set are of the second, all others of the first. That is 3
// operations a sum instead of 3 log2(kLanes).
template <int H, int... Lane>
inline vec added_halves(vec a, vec b, std::integer_sequence<int, Lane...>) {
  return SHUFFLE(a, b, (Lane & H ? kLanes + Lane : Lane)...) +
         SHUFFLE(a, b, (Lane & H ? kLanes + (Lane ^ H) : Lane ^ H)...);
}

template <int H = kLanes / 2>
inline vec sums(vec* rows) {
  for (int i = 0; i < H; ++i) rows[i] = added_halves<H>(rows[i], rows[i + H], Lanes{});
  if constexpr (H > 1) return sums<H / 2>(rows);
  return rows[0];
}

// --- functions -------------------------------------------------------------------------------------------------

// exp(x) = 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2: exp(r) by its Taylor series, whose first missing term
// is below 6e-9 there, and 2^n by writing n into the exponent. Within 2 units in the last place; x is clamped to
// [-87, 88], so the result is always a normal number. NaN stays NaN.
inline vec exp(vec x) {
  x = x < -87.0f ? broadcast(-87.0f) : x;
  x = x > 88.0f ? broadcast(88.0f) : x;
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa; 127 is the exponent's bias.
  constexpr float kShift = 12582912.0f + 127.0f;
  const vec shifted = x * 1.44269504f + kShift;
  const vec n = shifted - kShift;
  const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact in few bits
  vec series = broadcast(1.0f / 5040);
  for (const float coefficient : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    series = series * r + coefficient;
  return series * reinterpret_cast<vec>(reinterpret_cast<vec_bits>(shifted) << 23);
}

// 1 / (1 + exp(-x))
inline vec sigmoid(vec x) { return 1.0f / (1.0f + exp(-x)); }

template <class T>
inline float sum_of_squares(const T* x, int64_t size) {
  vec squares = {};
  for (int64_t i = 0; i < size; i += kLanes) {
    const vec value = load(x + i, size - i);
    squares += value * value;
  }
  return sum(squares);
}

// 1 / sqrt(mean(x^2) + eps)
template <class T>
inline float inverse_rms(const T* x, int64_t size, double eps) {
  return 1.0f / std::sqrt(sum_of_squares(x, size) / static_cast<float>(size) + static_cast<float>(eps));
}
