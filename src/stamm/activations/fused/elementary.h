// Elementary functions on each lane, inlined, so that the compiler interleaves their steps.
//
// float is within 3 units in the last place of float32, mostly 2. double is for results that are
// stored in float32, and is within 1e-13 of the value. NaN, infinities and signed zeros are those
// of torch.
#pragma once
#include "coefficients.h"
#include "vectors.h"

namespace stamm {

// Other functions: SLEEF, which is part of torch, where the machine has wide vectors; the C library
// elsewhere.
namespace library {
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
#define STAMM_SLEEF_NAME(name, kind) Sleef_##name##kind##_u10
#define STAMM_SLEEF(name, kind) STAMM_SLEEF_NAME(name, kind)
#define STAMM_UNARY_OF(name, function, M, C)                                         \
  extern "C" M function(M);                                                          \
  inline Vector<C> name(Vector<C> x) { return (Vector<C>)function((M)x); }
#define STAMM_UNARY(name)                                                            \
  STAMM_UNARY_OF(name, STAMM_SLEEF(name, STAMM_FLOATS), Floats, float)               \
  STAMM_UNARY_OF(name, STAMM_SLEEF(name, STAMM_DOUBLES), Doubles, double)
extern "C" Floats STAMM_SLEEF(pow, STAMM_FLOATS)(Floats, Floats);
#else
#define STAMM_UNARY(name)                                                            \
  template <class V>                                                                 \
  inline V name(V x) {                                                               \
    return of_lanes(x, [](auto lane) { return std::name(lane); });                   \
  }
#endif
STAMM_UNARY(sin)
STAMM_UNARY(cos)
STAMM_UNARY(tan)
STAMM_UNARY(sinh)
STAMM_UNARY(cosh)
STAMM_UNARY(asinh)
STAMM_UNARY(acosh)
}  // namespace library
using library::acosh;
using library::asinh;
using library::cosh;
using library::sinh;
using library::tan;

template <class V>
using Known = Coefficients<number_of<V>>;

// The sum of coefficients[k] x**k.
template <class V, int count>
inline V polynomial(const number_of<V> (&coefficients)[count], V x) {
  V sum = full<V>(coefficients[count - 1]);
#pragma GCC unroll 32
  for (int power = count - 2; power >= 0; --power) sum = sum * x + coefficients[power];
  return sum;
}

// The same by pairs of terms: the same number of steps, of which fewer wait for each other.
template <class V, int count>
__attribute__((always_inline)) inline V polynomial_in_pairs(
    const number_of<V> (&coefficients)[count], V x) {
  V terms[count];
#pragma GCC unroll 32
  for (int k = 0; k < count; ++k) terms[k] = full<V>(coefficients[k]);
#pragma GCC unroll 32
  for (int left = count; left > 1; left = (left + 1) / 2) {
#pragma GCC unroll 32
    for (int k = 0; k < left / 2; ++k) terms[k] = terms[2 * k + 1] * x + terms[2 * k];
    if (left % 2 == 1) terms[left / 2] = terms[left - 1];
    x = x * x;
  }
  return terms[0];
}

// exp(x + low) = 2**k (1 + rest): x = k log(2) + r, |r| <= log(2)/2. For large |x|, k is clamped.
template <class V>
struct Exponent {
  V k, rest;
};
template <class V>
inline Exponent<V> exponent(V x, V low = full<V>(-0.0)) {  // adding -0 changes nothing
  using K = Known<V>;
  const V held = at_most(at_least(x, full<V>(K::least)), full<V>(K::most));
  const V k = (held * K::per_log2 + K::rounding) - K::rounding;
  V r = held - k * K::log2_high;
  r = r - k * K::log2_low + low;
  return {k, r * r * polynomial(K::exponential, r) + r};
}
inline Vector<float> exp(Vector<float> x) {
  // A subnormal result takes the processor a hundred cycles.
  const auto gone = x < full<Vector<float>>(Known<Vector<float>>::least);
  const auto [k, rest] = exponent(gone ? Vector<float>{} : x);
  return gone ? Vector<float>{} : scaled(rest + 1, k);
}
// In double, exp(x) = 2 (1 + rest) half with half = 2**(k - 1), which is 0 far below the range of
// float32. With AVX-512, k is a multiple of 1/16, and two registers hold a table of 2 2**(k - floor(k)).
inline Vector<double> exp(Vector<double> x) {
  using V = Vector<double>;
  using K = Known<V>;
  const V held = at_most(at_least(x, full<V>(K::nothing)), full<V>(K::most));
#if defined(__AVX512F__)
  constexpr double moving = K::rounding / 16 + 1022;
  const V moved = held * K::per_log2 + moving, k = moved - moving;
  const V r = (held - k * K::log2_high) - k * K::log2_low;
  const V rest = r * r * polynomial(K::short_exponential, r) + r;
  const __m512d low = _mm512_load_pd(K::twice_roots), high = _mm512_load_pd(K::twice_roots + 8);
  const V twice = (V)_mm512_permutex2var_pd(low, (__m512i)moved, high);
  const V half = (V)(((bits_of<V>)moved << 48) & 0xfff0000000000000u);
  return (twice * rest + twice) * half;
#else
  constexpr double moving = K::rounding + 1022;
  const V moved = held * K::per_log2 + moving, k = moved - moving;
  const V r = (held - k * K::log2_high) - k * K::log2_low;
  const V rest = r * r * polynomial(K::exponential, r) + r;
  return (rest * 2 + 2) * (V)((bits_of<V>)moved << 52);
#endif
}

// The same in parts, for functions that lose digits where exp(x) is near 1: exp(x) is
// (2 + twice + rest) half with twice = 2 r and rest = 2 (exp(r) - 1 - r), which is 2 r over_r.
struct Exponential {
  Vector<double> twice, over_r, rest, half;
};
inline Exponential exponential(Vector<double> x) {
  using V = Vector<double>;
  using K = Known<V>;
  constexpr double moving = K::rounding + 1022;
  const V held = at_most(at_least(x, full<V>(K::nothing)), full<V>(K::most));
  const V moved = held * K::per_log2 + moving, k = moved - moving;
  const V r = (held - k * K::log2_high) - k * K::log2_low;
  const V twice = r + r, over_r = r * polynomial_in_pairs(K::exponential, r);
  return {twice, over_r, twice * over_r, (V)((bits_of<V>)moved << 52)};
}
// exp(x) beside another function of the same x below: the compiler computes the parts once.
inline Vector<double> exp_in_parts(Vector<double> x) {
  const auto [twice, over_r, rest, half] = exponential(x);
  return (2 + (twice + rest)) * half;
}
// exp(x) - 1, -0 at -0.
inline Vector<double> expm1(Vector<double> x) {
  using V = Vector<double>;
  const auto [twice, over_r, rest, half] = exponential(x);
  const V found = (twice + rest) * half + ((half + half) - 1);
  return (V)((bits_of<V>)found | ((bits_of<V>)x & (bits_of<V>)full<V>(-0.0)));
}
// exp(x) - 1 - x: near 0, where half is 1/2, the second term is 0 exactly.
inline Vector<double> phi2(Vector<double> x) {
  const auto [twice, over_r, rest, half] = exponential(x);
  return rest * half - ((1 + x) - (twice * half + (half + half)));
}
// (exp(x) - 1 - x)/x, 0 at 0.
inline Vector<double> phi2_over(Vector<double> x) {
  using V = Vector<double>;
  return abs(x) < full<V>(0.34) ? exponential(x).over_r : phi2(x) / x;
}
// x (b + a phi2(x)/x) without the division; zeros keep their signs.
inline Vector<double> phi2_sum(Vector<double> x, Vector<double> b, Vector<double> a) {
  using V = Vector<double>;
  const V product = b * x, sum = a * phi2(x) + product;
  return (V)((bits_of<V>)sum | ((bits_of<V>)product & (bits_of<V>)(x == V{})));
}
// 1/x for 1 <= x <= 2, within 1e-12 of it.
inline Vector<double> inverse(Vector<double> x) {
#if defined(__AVX512F__)
  const auto near = (Vector<double>)_mm512_rcp14_pd((__m512d)x), error = 1 - x * near;
  return near * (error * error + error) + near;
#else
  return 1 / x;
#endif
}

// 2 x = -2 |x|: tanh(|x|) = -e/(e + 2) with e = exp(-2 |x|) - 1, which keeps its digits.
template <class V>
inline V tanh(V x) {
  using K = Known<V>;
  const auto [k, rest] = exponent(at_least(abs(x) * -2, full<V>(-K::saturated)));
  const V power = power_of_two(k), e = power * rest + (power - 1);
  if constexpr (sizeof(number_of<V>) == 8) return with_sign(e / (e + 2), x);
  // Near 1 this would double the rounding error of e: there, 1 - 2 exp(-2 |x|)/(e + 2).
  const auto near = e < full<V>(-0.7);
  const V taken = (near ? (power * rest + power) * 2 : e) / (e + 2);
  return with_sign(near ? 1 - taken : taken, x);
}

// x = 2**k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), for normal numbers above 0.
template <class V>
struct Magnitude {
  V k, f;
};
template <class V>
inline Magnitude<V> magnitude(V x) {
  using C = number_of<V>;
  using B = bits_of<V>;
  constexpr int stored = sizeof(C) == 4 ? 23 : 52;  // bits of the fraction
  constexpr C whole = sizeof(C) == 4 ? 8388608.0 : 4503599627370496.0;  // 2**stored
  constexpr C bias = sizeof(C) == 4 ? 127 : 1023;
  const B root = (B)full<V>(0.70710678118654752440), one = (B)full<V>(1);
  const B shifted = (B)x + (one - root);
  // There is no conversion of 64 bits before AVX-512, but 2**stored + k has k as its last bits.
  const V k = (V)((shifted >> stored) | (B)full<V>(whole)) - (whole + bias);
  const B fraction = (shifted & ((B)full<V>(whole + whole - 1) ^ (B)full<V>(whole))) + root;
  return {k, (V)fraction - 1};
}
// log(2**k (1 + f)). f has no rounding error, and neither has the first term subtracted from it.
template <class V>
inline V log_of(V k, V f) {
  using K = Known<V>;
  const V s = f / (f + 2), square = s * s, half = f * f * number_of<V>(0.5);
  const V rest = s * (half + square * polynomial(K::logarithm, square)) + k * K::log2_low;
  return k * K::log2_high + (f - (half - rest));
}
template <class V>
inline V log(V x) {
  using C = number_of<V>;
  constexpr C least = sizeof(C) == 4 ? 0x1p-126 : 0x1p-1022, up = sizeof(C) == 4 ? 24 : 53;
  const auto subnormal = x < full<V>(least);
  const auto [k, f] = magnitude(subnormal ? x * (sizeof(C) == 4 ? C(0x1p24) : C(0x1p53)) : x);
  const V found = log_of(subnormal ? k - up : k, f);
  const V end = x < V{} ? full<V>(NAN) : x == V{} ? full<V>(-INFINITY) : x;
  return ((x > V{}) & (x < full<V>(INFINITY))) ? found : end;
}
// 1 + x is rounded; the rounding error is added back to f.
template <class V>
inline V log1p(V x) {
  const V sum = x + 1, taken = sum - 1, lost = (1 - (sum - taken)) + (x - taken);
  const auto [k, f] = magnitude(sum);
  // From 2**127 on, where 2**-k is subnormal, the lost part does not count.
  const V scale = power_of_two(at_least(-k, full<V>(sizeof(number_of<V>) == 4 ? -126 : -1022)));
  const V found = log_of(k, f + lost * scale);
  const V end = sum < V{} ? full<V>(NAN) : sum == V{} ? full<V>(-INFINITY) : x;
  return ((sum > V{}) & (sum < full<V>(INFINITY)) & (x != V{})) ? found : end;
}

// atan(small/large) for 0 <= small <= large, both finite, large > 0.
template <class V>
inline V angle(V small, V large) {
  using K = Known<V>;
  const auto middle = small > large * K::tan_eighth;
  const V t = (middle ? small - large : small) / (middle ? small + large : large);
  const V square = t * t;
  const V found = t + t * (square * polynomial(K::arctangent, square));
  const V half = full<V>(K::half_pi_0 / 2);
  return middle ? half + (found + K::half_pi_1 / 2) : found;
}
// atan(y/x) for y, x >= 0 as `angle` takes them.
template <class V>
inline V first_quadrant(V y, V x) {
  using K = Known<V>;
  const auto steep = y > x;
  const V found = angle(steep ? x : y, steep ? y : x);
  return steep ? K::half_pi_0 - (found - K::half_pi_1) : found;
}
template <class V>
inline V atan(V x) {
  return with_sign(first_quadrant(abs(x), full<V>(1)), x);
}
template <class V>
inline V asin(V x) {
  const V size = abs(x);
  return with_sign(first_quadrant(size, sqrt((1 - size) * (1 + size))), x);
}
template <class V>
inline V atan2(V y, V x) {
  using C = number_of<V>;
  using K = Known<V>;
  V a = abs(y), b = abs(x);
  const auto huge = (a > full<V>(std::numeric_limits<C>::max() / 4)) |
                    (b > full<V>(std::numeric_limits<C>::max() / 4));
  a = huge ? a * C(0.25) : a;
  b = huge ? b * C(0.25) : b;
  const auto infinite = (a == full<V>(INFINITY)) & (b == full<V>(INFINITY));
  const auto nothing = (a == V{}) & (b == V{});
  a = infinite ? full<V>(1) : a;
  b = infinite | nothing ? full<V>(1) : b;
  const V found = first_quadrant(a, b);
  const V turned = 2 * K::half_pi_0 - (found - 2 * K::half_pi_1);
  return with_sign(with_sign(full<V>(1), x) < V{} ? turned : found, y);
}

// sin(|x|) or cos(x) at turns of pi/2. For large |x|, and where products are rounded before they are
// added, k pi/2 in parts would lose the digits of r.
#if defined(__FMA__) || defined(__aarch64__)
template <class V>
struct Turned {
  V sine, cosine;
  bits_of<V> turns;  // its last two bits count
};
template <class V>
inline Turned<V> turned(V x) {
  using K = Known<V>;
  const V moved = x * K::per_half_pi + K::rounding, k = moved - K::rounding;
  V r = x - k * K::half_pi_0;
  r = r - k * K::half_pi_1;
  if constexpr (sizeof(number_of<V>) == 4) r = r - k * K::half_pi_2;
  const V square = r * r;
  const V sine = r + r * (square * polynomial(K::sine, square));
  const V rest = square * square * polynomial(K::cosine, square);
  const V cosine = 1 - (square * number_of<V>(0.5) - rest);
  return {sine, cosine, (bits_of<V>)moved};
}
template <class V>
inline V sin(V x) {
  constexpr int top = 8 * sizeof(number_of<V>) - 1;
  if (any(abs(x) > full<V>(Known<V>::turns))) return library::sin(x);
  const auto [sine, cosine, turns] = turned(abs(x));
  const V found = (turns & 1) != 0 ? cosine : sine;
  const auto sign = ((turns >> 1) << top) ^ ((bits_of<V>)x & (bits_of<V>)full<V>(-0.0));
  return (V)((bits_of<V>)found ^ sign);
}
template <class V>
inline V cos(V x) {
  constexpr int top = 8 * sizeof(number_of<V>) - 1;
  if (any(abs(x) > full<V>(Known<V>::turns))) return library::cos(x);
  const auto [sine, cosine, turns] = turned(abs(x));
  const V found = (turns & 1) != 0 ? sine : cosine;
  return (V)((bits_of<V>)found ^ (((turns + 1) >> 1) << top));
}
#else
using library::cos;
using library::sin;
#endif

// (1 + u p(t)) exp(-x**2)/(1 + 2 x) for x >= 0, u = x/(x + a), t = (x - a)/(x + a). In float32 the
// rounding errors of x**2 and of the division are corrected.
template <class V>
inline V erfc(V x) {
  using C = number_of<V>;
  using K = Known<V>;
  const V size = at_most(abs(x), full<V>(K::farthest));
  const V sum = size + K::centre, below = size * 2 + 1;
  const V per_both = 1 / (sum * below), per_sum = below * per_both;
  V per_below = sum * per_both, high = size, low{};
  if constexpr (sizeof(C) == 4) {
    per_below = per_below + per_below * (1 - below * per_below);
    high = (V)((bits_of<V>)size & 0xfffff000u);
    low = (high - size) * (high + size);
  }
  const V p = polynomial(K::complement, (size - K::centre) * per_sum);
  const V scale = per_below + per_below * (size * per_sum * p);
  const auto [k, rest] = exponent(-high * high, low);
  const V found = scaled(scale + scale * rest, k);
  return x < V{} ? 2 - found : found;
}
template <class V>
inline V erf(V x) {
  using K = Known<V>;
  const V size = abs(x), square = x * x;
  const V near = x + x * (K::erf_slope + square * polynomial(K::error, square));
  return size < full<V>(1) ? near : with_sign(1 - erfc(size), x);
}

// exp(y log(x)) keeps enough digits in float64. In float32 it needs twice the digits of log.
inline Vector<double> pow(Vector<double> x, Vector<double> y) {
  using V = Vector<double>;
  const V one = full<V>(1), size = abs(x), half = y * 0.5;
  const auto whole = floor(y) == y, odd = whole & (floor(half) != half);
  V found = exp(y * log(size));
  found = (y == V{}) | (size == one) ? one : found;
  found = odd ? with_sign(found, x) : found;
  found = (x < V{}) & (size < full<V>(INFINITY)) & ~whole ? full<V>(NAN) : found;
  return (x != x) & (y != V{}) | (y != y) & (x != one) ? x + y : found;
}
#if defined(STAMM_FLOATS)
inline Vector<float> pow(Vector<float> x, Vector<float> y) {
  using library::Floats;
  return (Vector<float>)library::STAMM_SLEEF(pow, STAMM_FLOATS)((Floats)x, (Floats)y);
}
#else
inline Vector<float> pow(Vector<float> x, Vector<float> y) {
  for (int k = 0; k < lanes<float>; ++k) x[k] = std::pow(x[k], y[k]);
  return x;
}
#endif

}  // namespace stamm
