// The loops around a generated pass: blocks that stay in cache, threads, and sums in a fixed order.
//
// A pass is a struct of the generated source:
//   Number                        float or double, what is computed in
//   inputs, outputs, sums         how many tensors are read, written, and how many sums are taken
//   parameters, uniforms          how many parameters are read, and values that depend on them only
//   prepare(parameters, uniforms) from V to V
//   apply(in, uniforms, out, sum) for one vector
//
// Every sum is a tree that depends on the shape only: the lanes of a 64-byte vector over four
// blocks, lanes in pairs, a chunk, chunks. The number of threads does not enter.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "exponential.h"

namespace stamm {

// Sixteen bits in memory.
struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

template <class C>
struct vector_of;
template <>
struct vector_of<float> {
  typedef float type __attribute__((vector_size(64)));
  typedef int32_t whole __attribute__((vector_size(64)));
};
template <>
struct vector_of<double> {
  typedef double type __attribute__((vector_size(64)));
  typedef int64_t whole __attribute__((vector_size(64)));
};
template <class C>
using Vector = typename vector_of<C>::type;
template <class C>
constexpr int lanes = 64 / sizeof(C);
template <class V>
using number_of = std::remove_cvref_t<decltype(V{}[0])>;

// A function of numbers on each lane. Loops over arrays become single instructions.
template <class V, class F>
inline V of_lanes(V x, F function) {
  number_of<V> held[lanes<number_of<V>>];
  std::memcpy(held, &x, 64);
  for (auto& lane : held) lane = function(lane);
  std::memcpy(&x, held, 64);
  return x;
}

// Functions of one or two variables: those of SLEEF, which torch brings with it, where the machine
// has wide vectors; those of the C library elsewhere.
#if defined(__AVX512F__)
using Floats = __m512;
using Doubles = __m512d;
#define STAMM_FLOATS f16
#define STAMM_DOUBLES d8
#elif defined(__AVX2__)
using Floats = __m256;
using Doubles = __m256d;
#define STAMM_FLOATS f8
#define STAMM_DOUBLES d4
#endif
#if defined(STAMM_FLOATS)
// A function of the machine's vectors on ours, which are one of them or two.
template <class Part, class V, class F, class... Vs>
inline V of_parts(F function, V x, Vs... others) {
  struct Parts { Part part[64 / sizeof(Part)]; };
  Parts result;
  for (size_t k = 0; k < 64 / sizeof(Part); ++k)
    result.part[k] = function(__builtin_bit_cast(Parts, x).part[k],
                              __builtin_bit_cast(Parts, others).part[k]...);
  return __builtin_bit_cast(V, result);
}
#define STAMM_SLEEF_NAME(name, kind, ulp) Sleef_##name##kind##_##ulp
#define STAMM_SLEEF(name, kind, ulp) STAMM_SLEEF_NAME(name, kind, ulp)
#define STAMM_UNARY_OF(name, function, Part, C)                                      \
  extern "C" Part function(Part);                                                    \
  inline Vector<C> name(Vector<C> x) { return of_parts<Part>(function, x); }
#define STAMM_BINARY_OF(name, function, Part, C)                                     \
  extern "C" Part function(Part, Part);                                              \
  inline Vector<C> name(Vector<C> x, Vector<C> y) { return of_parts<Part>(function, x, y); }
#define STAMM_UNARY(name, ulp)                                                       \
  STAMM_UNARY_OF(name, STAMM_SLEEF(name, STAMM_FLOATS, ulp), Floats, float)          \
  STAMM_UNARY_OF(name, STAMM_SLEEF(name, STAMM_DOUBLES, ulp), Doubles, double)
#define STAMM_BINARY(name, ulp)                                                      \
  STAMM_BINARY_OF(name, STAMM_SLEEF(name, STAMM_FLOATS, ulp), Floats, float)         \
  STAMM_BINARY_OF(name, STAMM_SLEEF(name, STAMM_DOUBLES, ulp), Doubles, double)
#else
#define STAMM_UNARY(name, ulp)                                                       \
  template <class V>                                                                 \
  inline V name(V x) {                                                               \
    return of_lanes(x, [](auto lane) { return std::name(lane); });                   \
  }
#define STAMM_BINARY(name, ulp)                                                      \
  template <class V>                                                                 \
  inline V name(V x, V y) {                                                          \
    for (int k = 0; k < lanes<number_of<V>>; ++k) x[k] = std::name(x[k], y[k]);      \
    return x;                                                                        \
  }
#endif
STAMM_UNARY(log, u10)
STAMM_UNARY(log1p, u10)
STAMM_UNARY(sin, u10)
STAMM_UNARY(cos, u10)
STAMM_UNARY(tan, u10)
STAMM_UNARY(asin, u10)
STAMM_UNARY(atan, u10)
STAMM_UNARY(tanh, u10)
STAMM_UNARY(sinh, u10)
STAMM_UNARY(cosh, u10)
STAMM_UNARY(asinh, u10)
STAMM_UNARY(acosh, u10)
STAMM_UNARY(erf, u10)
STAMM_UNARY(erfc, u15)
STAMM_BINARY(pow, u10)
STAMM_BINARY(atan2, u10)

template <class V>
inline V floor(V x) { return of_lanes(x, [](auto lane) { return std::floor(lane); }); }
template <class V>
inline V sqrt(V x) { return of_lanes(x, [](auto lane) { return std::sqrt(lane); }); }

template <class V>
inline V abs(V x) {
  return x < -x ? -x : x == V{} ? V{} : x;
}

template <class V>
inline V full(number_of<V> value) {
  return value - V{};  // value + 0 would lose the sign of -0
}
// NaN comes through, whichever side it is on.
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
// The same where y is known to be a number.
template <class V>
inline V at_least(V x, V y) {
#ifdef __AVX512F__
  // One instruction, which gives its second operand where one is NaN.
  if constexpr (sizeof(number_of<V>) == 4) return (V)_mm512_max_ps((__m512)y, (__m512)x);
  else return (V)_mm512_max_pd((__m512d)y, (__m512d)x);
#else
  return x < y ? y : x;
#endif
}
template <class V>
inline V at_most(V x, V y) {
#ifdef __AVX512F__
  if constexpr (sizeof(number_of<V>) == 4) return (V)_mm512_min_ps((__m512)y, (__m512)x);
  else return (V)_mm512_min_pd((__m512d)y, (__m512d)x);
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
  using I = vector_of<double>::whole;
  I whole = __builtin_convertvector(k, I), half = whole >> 1;
  return x * (Vector<double>)((half + 1023) << 52) * (Vector<double>)((whole - half + 1023) << 52);
#endif
}

// exp in line, so that its steps mix with those around it: x = k log(2) + r, |r| <= log(2)/2.
template <class V>
inline V exp(V x) {
  using E = Exponential<number_of<V>>;
  V held = at_most(at_least(x, full<V>(E::least)), full<V>(E::most));
  V k = (held * E::per_log2 + E::rounding) - E::rounding;
  V r = held - k * E::log2_high;
  r = r - k * E::log2_low;
  constexpr int degree = std::size(E::remainder) - 1;
  V p = full<V>(E::remainder[degree]);
#pragma GCC unroll 16
  for (int power = degree - 1; power >= 0; --power) p = p * r + E::remainder[power];
  V rest = r * r * p + r;
  return scaled(rest + full<V>(1), k);
}

constexpr int64_t block = 512;        // elements that are in flight at once
constexpr int64_t summed = 4 * block;  // elements that lanes add up
constexpr int64_t chunk = STAMM_CHUNK;  // what one thread takes at a time, and sums up
constexpr int64_t rows_at_once = STAMM_ROWS;  // likewise where columns have their own parameters
static_assert(chunk % summed == 0);

// A tensor of rows x columns; steps in elements.
struct Strided {
  void* data;
  int64_t row_step, column_step;
};

// One vector from memory and back, rounded to the nearest, ties to even.
typedef uint16_t Short __attribute__((vector_size(32)));
typedef float Single __attribute__((vector_size(32)));
typedef uint32_t Bits __attribute__((vector_size(64)));

inline void load(const float* from, Vector<float>& x) { std::memcpy(&x, from, 64); }
inline void store(Vector<float> x, float* to) { std::memcpy(to, &x, 64); }
inline void load(const float* from, Vector<double>& x) {
  Single held;
  std::memcpy(&held, from, 32);
  x = __builtin_convertvector(held, Vector<double>);
}
inline void store(Vector<double> x, float* to) {
  Single held = __builtin_convertvector(x, Single);
  std::memcpy(to, &held, 32);
}
inline void load(const BFloat16* from, Vector<float>& x) {
  Short held;
  std::memcpy(&held, from, 32);
#if defined(__AVX512F__)
  x = (Vector<float>)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)held), 16);
#else
  x = (Vector<float>)(__builtin_convertvector(held, Bits) << 16);
#endif
}
inline void store(Vector<float> x, BFloat16* to) {
  Bits bits = (Bits)x, high = bits >> 16;
  Bits rounded = (bits + 0x7fff + (high & 1)) >> 16;
  rounded = x != x ? high | 0x40 : rounded;
#if defined(__AVX512F__)
  Short held = (Short)_mm512_cvtepi32_epi16((__m512i)rounded);
#else
  Short held = __builtin_convertvector(rounded, Short);
#endif
  std::memcpy(to, &held, 32);
}
inline void load(const Half* from, Vector<float>& x) {
#if defined(__AVX512F__)
  x = (Vector<float>)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
  float held[16];
  for (int k = 0; k < 16; ++k) held[k] = __builtin_bit_cast(_Float16, from[k].bits);
  std::memcpy(&x, held, 64);
#endif
}
inline void store(Vector<float> x, Half* to) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  for (int k = 0; k < 16; ++k) to[k].bits = __builtin_bit_cast(uint16_t, (_Float16)x[k]);
#endif
}

// `size` elements from `first` on, counted row by row: where they lie, or nothing when they do not
// lie side by side or do not fill whole vectors of `step` elements.
template <class T>
inline T* place(const Strided& t, int64_t columns, int64_t first, int64_t size, int64_t step) {
  const int64_t row = first / columns, column = first % columns;
  if (t.column_step != 1 || column + size > columns || size % step != 0) return nullptr;
  return static_cast<T*>(t.data) + row * t.row_step + column;
}
template <class T>
inline void collect(const Strided& t, int64_t columns, int64_t first, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = (first + i) / columns, column = (first + i) % columns;
    to[i] = static_cast<T*>(t.data)[row * t.row_step + column * t.column_step];
  }
}
template <class T>
inline void scatter(const T* from, const Strided& t, int64_t columns, int64_t first, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = (first + i) / columns, column = (first + i) % columns;
    static_cast<T*>(t.data)[row * t.row_step + column * t.column_step] = from[i];
  }
}

// The sum of a vector's lanes, in pairs.
template <class V>
inline double total(V x) {
  using C = number_of<V>;
  double held[lanes<C>];
  for (int k = 0; k < lanes<C>; ++k) held[k] = x[k];
  for (int width = lanes<C> / 2; width > 0; width /= 2)
    for (int k = 0; k < width; ++k) held[k] += held[k + width];
  return held[0];
}

// A pass over at most a block of elements. uniforms(i) and add(i, sums) are told which elements.
template <class P, class T, class U, class A>
inline void pass(const Strided* in, const Strided* out, int64_t columns, int64_t first,
                 int64_t size, U uniforms, A add) {
  using C = typename P::Number;
  using V = Vector<C>;
  T held[P::inputs + P::outputs][block];
  const T* from[P::inputs];
  T* to[P::outputs];
  bool apart[P::outputs];
  for (int k = 0; k < P::inputs; ++k) {
    from[k] = place<T>(in[k], columns, first, size, lanes<C>);
    if (from[k] == nullptr) {
      for (int64_t i = size; i < block && i < size + lanes<C>; ++i) held[k][i] = T{};
      collect(in[k], columns, first, size, held[k]);
      from[k] = held[k];
    }
  }
  for (int k = 0; k < P::outputs; ++k) {
    to[k] = place<T>(out[k], columns, first, size, lanes<C>);
    apart[k] = to[k] == nullptr;
    if (apart[k]) to[k] = held[P::inputs + k];
  }
  for (int64_t i = 0; i < size; i += lanes<C>) {
    V x[P::inputs], y[P::outputs], s[P::sums + 1];
    for (int k = 0; k < P::inputs; ++k) load(from[k] + i, x[k]);
    P::apply(x, uniforms(i), y, s);
    for (int k = 0; k < P::outputs; ++k) store(y[k], to[k] + i);
    add(i, s);
  }
  for (int k = 0; k < P::outputs; ++k)
    if (apart[k]) scatter(to[k], out[k], columns, first, size);
}

// One number for each parameter. partial: sums doubles for each chunk.
template <class P, class T>
void run(const Strided* in, const Strided* out, int64_t rows, int64_t columns,
         const double* parameters, double* sums, double* partial, int threads) {
  using C = typename P::Number;
  using V = Vector<C>;
  const int64_t count = rows * columns, chunks = (count + chunk - 1) / chunk;
  V uniforms[P::uniforms + 1];
  V given[P::parameters + 1];
  for (int k = 0; k < P::parameters; ++k) given[k] = full<V>(static_cast<C>(parameters[k]));
  P::prepare(given, uniforms);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t c = 0; c < chunks; ++c) {
    double added[P::sums + 1] = {};
    const int64_t stop = std::min(count, (c + 1) * chunk);
    V sum[P::sums + 1] = {};
    for (int64_t first = c * chunk; first < stop; first += block) {
      const int64_t size = std::min(block, stop - first);
      pass<P, T>(in, out, columns, first, size, [&](int64_t) { return uniforms; },
                 [&](int64_t i, const V* s) {
                   if (i + lanes<C> <= size) {
                     for (int k = 0; k < P::sums; ++k) sum[k] += s[k];
                   } else {
                     for (int k = 0; k < P::sums; ++k)
                       for (int64_t j = 0; j < size - i; ++j) sum[k][j] += s[k][j];
                   }
                 });
      // A lane adds up 128 numbers (of float64 256) before it goes over into float64.
      if ((first + block) % summed == 0 || first + block >= stop) {
        for (int k = 0; k < P::sums; ++k) {
          added[k] += total(sum[k]);
          sum[k] = V{};
        }
      }
    }
    for (int k = 0; k < P::sums; ++k) partial[c * P::sums + k] = added[k];
  }
  for (int k = 0; k < P::sums; ++k) {
    sums[k] = 0;
    for (int64_t c = 0; c < chunks; ++c) sums[k] += partial[c * P::sums + k];
  }
}

// One number for each parameter and column: parameters (P::parameters, columns), sums
// (P::sums, columns), partial (row blocks, P::sums, columns).
template <class P, class T>
void run_columns(const Strided* in, const Strided* out, int64_t rows, int64_t columns,
                 const double* parameters, double* sums, double* partial, int threads) {
  using C = typename P::Number;
  using V = Vector<C>;
  const int64_t tall = (rows + rows_at_once - 1) / rows_at_once;
  const int64_t wide = (columns + block - 1) / block;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
  for (int64_t r = 0; r < tall; ++r) {
    for (int64_t b = 0; b < wide; ++b) {
      V uniforms[block / lanes<C>][P::uniforms + 1];
      V sum[block / lanes<C>][P::sums + 1] = {};
      const int64_t left = b * block, size = std::min(block, columns - left);
      for (int64_t i = 0; i < size; i += lanes<C>) {
        V given[P::parameters + 1] = {};
        for (int k = 0; k < P::parameters; ++k)
          for (int64_t j = 0; j < lanes<C>; ++j)
            given[k][j] = parameters[k * columns + std::min(left + i + j, columns - 1)];
        P::prepare(given, uniforms[i / lanes<C>]);
      }
      const int64_t stop = std::min(rows, (r + 1) * rows_at_once);
      for (int64_t row = r * rows_at_once; row < stop; ++row) {
        pass<P, T>(in, out, columns, row * columns + left, size,
                   [&](int64_t i) { return uniforms[i / lanes<C>]; },
                   [&](int64_t i, const V* s) {
                     for (int k = 0; k < P::sums; ++k) sum[i / lanes<C>][k] += s[k];
                   });
      }
      for (int k = 0; k < P::sums; ++k)
        for (int64_t i = 0; i < size; ++i)
          partial[(r * P::sums + k) * columns + left + i] = sum[i / lanes<C>][k][i % lanes<C>];
    }
  }
  for (int64_t i = 0; i < P::sums * columns; ++i) {
    sums[i] = 0;
    for (int64_t r = 0; r < tall; ++r) sums[i] += partial[r * P::sums * columns + i];
  }
}

}  // namespace stamm
