// Vectors as wide as the machine's registers: memory, selections, functions on each lane.
//
// The width follows the instruction set that the compiler is given: 64 bytes with AVX-512, 32 with
// AVX2, 16 elsewhere (NEON, SSE2). Wider vectors would be split by the compiler, through memory.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

namespace stamm {

// Sixteen bits in memory.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};
#if defined(__aarch64__)
using HalfNumber = __fp16;  // C++ compilers for it know _Float16 since GCC 13 only
#else
using HalfNumber = _Float16;
#endif

#if defined(__AVX512F__)
#define STAMM_BYTES 64
#elif defined(__AVX2__)
#define STAMM_BYTES 32
#else
#define STAMM_BYTES 16
#endif
constexpr int64_t vector_bytes = STAMM_BYTES;

template <class C>
struct vector_of;
template <>
struct vector_of<float> {
  typedef float type __attribute__((vector_size(STAMM_BYTES)));
  typedef int32_t whole __attribute__((vector_size(STAMM_BYTES)));
  typedef uint32_t bits __attribute__((vector_size(STAMM_BYTES)));
};
template <>
struct vector_of<double> {
  typedef double type __attribute__((vector_size(STAMM_BYTES)));
  typedef int64_t whole __attribute__((vector_size(STAMM_BYTES)));
  typedef uint64_t bits __attribute__((vector_size(STAMM_BYTES)));
};
template <class C>
using Vector = typename vector_of<C>::type;
template <class C>
constexpr int lanes = STAMM_BYTES / sizeof(C);
template <class V>
using number_of = std::remove_cvref_t<decltype(V{}[0])>;
template <class V>
using bits_of = typename vector_of<number_of<V>>::bits;

// A function of numbers on each lane. Loops over arrays become single instructions.
template <class V, class F>
inline V of_lanes(V x, F function) {
  number_of<V> held[lanes<number_of<V>>];
  std::memcpy(held, &x, sizeof(V));
  for (auto& lane : held) lane = function(lane);
  std::memcpy(&x, held, sizeof(V));
  return x;
}

template <class V>
inline V floor(V x) { return of_lanes(x, [](auto lane) { return std::floor(lane); }); }
template <class V>
inline V sqrt(V x) { return of_lanes(x, [](auto lane) { return std::sqrt(lane); }); }

template <class V>
inline V full(number_of<V> value) {
  return value - V{};  // value + 0 would lose the sign of -0
}
template <class V>
inline V abs(V x) {
  return (V)((bits_of<V>)x & ~(bits_of<V>)full<V>(-0.0));
}
template <class V>
inline V minus_abs(V x) {
  return (V)((bits_of<V>)x | (bits_of<V>)full<V>(-0.0));
}
// The first number with the sign of the second.
template <class V>
inline V with_sign(V x, V y) {
  const auto sign = (bits_of<V>)full<V>(-0.0);
  return (V)(((bits_of<V>)x & ~sign) | ((bits_of<V>)y & sign));
}
// Whether a comparison holds in any lane.
template <class M>
inline bool any(M truth) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)truth, (__m512i)truth) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)truth, (__m256i)truth);
#else
  bool found = false;
  for (int k = 0; k < lanes<number_of<M>>; ++k) found |= truth[k] != 0;
  return found;
#endif
}
// NaN in either operand is propagated.
template <class V>
inline V maximum(V x, V y) {
  V larger = x < y ? y : x;
  return y != y ? y : larger;
}
template <class V>
inline V minimum(V x, V y) {
  V smaller = x > y ? y : x;
  return y != y ? y : smaller;
}
// The same where y is known not to be NaN: one instruction, which returns its second operand where
// one of them is NaN.
template <class V>
inline V at_least(V x, V y) {
  [[maybe_unused]] constexpr bool single = sizeof(number_of<V>) == 4;
#if defined(__AVX512F__)
  if constexpr (single) return (V)_mm512_max_ps((__m512)y, (__m512)x);
  else return (V)_mm512_max_pd((__m512d)y, (__m512d)x);
#elif defined(__AVX2__)
  if constexpr (single) return (V)_mm256_max_ps((__m256)y, (__m256)x);
  else return (V)_mm256_max_pd((__m256d)y, (__m256d)x);
#else
  return x < y ? y : x;
#endif
}
template <class V>
inline V at_most(V x, V y) {
  [[maybe_unused]] constexpr bool single = sizeof(number_of<V>) == 4;
#if defined(__AVX512F__)
  if constexpr (single) return (V)_mm512_min_ps((__m512)y, (__m512)x);
  else return (V)_mm512_min_pd((__m512d)y, (__m512d)x);
#elif defined(__AVX2__)
  if constexpr (single) return (V)_mm256_min_ps((__m256)y, (__m256)x);
  else return (V)_mm256_min_pd((__m256d)y, (__m256d)x);
#else
  return x > y ? y : x;
#endif
}
template <class V>
inline V sign(V x) {
  V zero{};
  V one = full<V>(1);
  V found = x < zero ? -one : zero;
  return x > zero ? one : found;
}
template <class V>
inline V gather(const number_of<V>* row, V place) {
  using C = number_of<V>;
  V found;
  for (int k = 0; k < lanes<C>; ++k) found[k] = row[static_cast<int64_t>(place[k])];
  return found;
}

// 2**k for a whole k, where that is a normal number.
template <class V>
inline V power_of_two(V k) {
  // AVX2 converts no float64 to whole numbers, but the last bits of k + 1.5 * 2**52 are those of k.
  constexpr bool single = sizeof(number_of<V>) == 4;
  constexpr number_of<V> moved = single ? 12582912.0 + 127 : 6755399441055744.0 + 1023;
  return (V)((bits_of<V>)(k + moved) << (single ? 23 : 52));
}
// x * 2**k for a whole k, through the subnormals and into infinity.
inline Vector<float> scaled(Vector<float> x, Vector<float> k) {
#ifdef __AVX512F__
  return (Vector<float>)_mm512_scalef_ps((__m512)x, (__m512)k);
#else
  using I = vector_of<float>::whole;
  I whole = __builtin_convertvector(k, I), half = whole >> 1;
  return x * (Vector<float>)((half + 127) << 23) * (Vector<float>)((whole - half + 127) << 23);
#endif
}
inline Vector<double> scaled(Vector<double> x, Vector<double> k) {
#ifdef __AVX512F__
  return (Vector<double>)_mm512_scalef_pd((__m512d)x, (__m512d)k);
#else
  constexpr double rounding = 6755399441055744.0;
  const Vector<double> half = (k * 0.5 + rounding) - rounding;
  return x * power_of_two(half) * power_of_two(k - half);
#endif
}

// One vector from memory and back, rounded to the nearest, ties to even.
typedef uint16_t Short __attribute__((vector_size(STAMM_BYTES / 2)));
typedef float Single __attribute__((vector_size(STAMM_BYTES / 2)));
typedef uint32_t Bits __attribute__((vector_size(STAMM_BYTES)));

template <class X>
inline X read(const void* from) {
  X x;
  std::memcpy(&x, from, sizeof(X));
  return x;
}

inline void load(const float* from, Vector<float>& x) { x = read<Vector<float>>(from); }
inline void store(Vector<float> x, float* to) { std::memcpy(to, &x, sizeof(x)); }
inline void load(const float* from, Vector<double>& x) {
  // GCC 12 converts halves of a vector on their own, and joins them.
#if defined(__AVX512F__)
  x = (Vector<double>)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#elif defined(__AVX2__)
  x = (Vector<double>)_mm256_cvtps_pd(_mm_loadu_ps(from));
#else
  x = __builtin_convertvector(read<Single>(from), Vector<double>);
#endif
}
inline void store(Vector<double> x, float* to) {
#if defined(__AVX512F__)
  _mm256_storeu_ps(to, _mm512_cvtpd_ps((__m512d)x));
#elif defined(__AVX2__)
  _mm_storeu_ps(to, _mm256_cvtpd_ps((__m256d)x));
#else
  const Single held = __builtin_convertvector(x, Single);
  std::memcpy(to, &held, sizeof(held));
#endif
}
inline void load(const BFloat16* from, Vector<float>& x) {
  const Short held = read<Short>(from);
#if defined(__AVX512F__)
  const Bits bits = (Bits)_mm512_cvtepu16_epi32((__m256i)held);
#elif defined(__AVX2__)
  const Bits bits = (Bits)_mm256_cvtepu16_epi32((__m128i)held);
#else
  const Bits bits = __builtin_convertvector(held, Bits);
#endif
  x = (Vector<float>)(bits << 16);
}
inline void store(Vector<float> x, BFloat16* to) {
  const Bits bits = (Bits)x, high = bits >> 16;
  Bits rounded = (bits + 0x7fff + (high & 1)) >> 16;
  rounded = x != x ? high | 0x40 : rounded;
#if defined(__AVX512F__)
  const Short held = (Short)_mm512_cvtepi32_epi16((__m512i)rounded);
#elif defined(__AVX2__)
  // Packs each half of the register on its own: the results of the halves are then joined.
  const __m256i packed = _mm256_packus_epi32((__m256i)rounded, (__m256i)rounded);
  const Short held = (Short)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  const Short held = __builtin_convertvector(rounded, Short);
#endif
  std::memcpy(to, &held, sizeof(held));
}
inline void load(const Half* from, Vector<float>& x) {
#if defined(__AVX512F__)
  x = (Vector<float>)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__) && STAMM_BYTES == 32
  x = (Vector<float>)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  for (int k = 0; k < lanes<float>; ++k) x[k] = __builtin_bit_cast(HalfNumber, from[k].bits);
#endif
}
inline void store(Vector<float> x, Half* to) {
  [[maybe_unused]] constexpr int nearest = 0x08;  // to the nearest, ties to even; no exceptions
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph((__m512)x, nearest));
#elif defined(__F16C__) && STAMM_BYTES == 32
  _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph((__m256)x, nearest));
#else
  for (int k = 0; k < lanes<float>; ++k)
    to[k].bits = __builtin_bit_cast(uint16_t, static_cast<HalfNumber>(x[k]));
#endif
}

}  // namespace stamm

#include "elementary.h"
