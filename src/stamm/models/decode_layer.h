// A layer's step of decoding between its matrix products, in float32: sums of the residual stream with
// their RMS norm, and attention of one new token of each row over the KV cache.
//
// A row's numbers depend neither on other rows nor on the number of threads. Widths are multiples of
// a vector's lanes.
#pragma once
#include <omp.h>

#include <utility>

#include "vectors.h"

namespace stamm {

using V = Vector<float>;
using I = vector_of<float>::whole;
constexpr int64_t wide = lanes<float>;

inline V at(const float* from) {
  V x;
  load(from, x);
  return x;
}

#if defined(__clang__)
#define STAMM_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define STAMM_PICK(a, b, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif
// Sums of lanes S apart: of a in lanes without bit S, of b in the others.
template <int S, int... J>
inline V pair_sums(V a, V b, std::integer_sequence<int, J...>) {
  return STAMM_PICK(a, b, (J & S ? wide + J - S : J)...) +
         STAMM_PICK(a, b, (J & S ? wide + J : J + S)...);
}
// Lane k: the sum of the lanes of x[k].
template <int S = 1>
inline V lane_sums(V* x) {
#pragma GCC unroll 16
  for (int k = 0; k < wide; k += 2 * S)
    x[k] = pair_sums<S>(x[k], x[k + S], std::make_integer_sequence<int, wide>{});
  if constexpr (2 * S < wide) return lane_sums<2 * S>(x);
  return x[0];
}
inline float sum(V x) {
  float held[wide];
  store(x, held);
  for (int64_t apart = wide / 2; apart > 0; apart /= 2)
    for (int64_t k = 0; k < apart; ++k) held[k] += held[k + apart];
  return held[0];
}

// 1 / sqrt(mean(x^2) + eps)
inline float inverse_rms(const float* x, int64_t width, float eps) {
  V squares{};
  for (int64_t i = 0; i < width; i += wide) squares += at(x + i) * at(x + i);
  return 1.0f / std::sqrt(sum(squares) / width + eps);
}

// One layer's attention. norm (heads + kv_heads, width), or NULL; angles (positions, width): cosines of
// a position, then sines; keys and values (rows, kv_heads, columns, width); scores: columns + 2 wide
// numbers for each head.
struct Attention {
  const float *norm, *angles;
  float *keys, *values, *scores;
  int64_t rows, heads, kv_heads, width, columns;
  float eps;
};

// A query or key, normalised and rotated, times `factor`.
inline void turn(const Attention& a, const float* x, int64_t head, const float* angle, float factor,
                 float* to) {
  const int64_t half = a.width / 2;
  const float* weight = a.norm ? a.norm + head * a.width : nullptr;
  float normal[512];
  if (weight) {
    const float scale = inverse_rms(x, a.width, a.eps);
    for (int64_t i = 0; i < a.width; ++i) normal[i] = x[i] * scale * weight[i];
    x = normal;
  }
  const float *cosine = angle, *sine = angle + half;
  for (int64_t i = 0; i < half; ++i) {
    to[i] = (x[i] * cosine[i] - x[i + half] * sine[i]) * factor;
    to[i + half] = (x[i + half] * cosine[i] + x[i] * sine[i]) * factor;
  }
}

// to[e] = factor * sum over c of weight[c] value[c][e], for N vectors. Meanwhile fetches `next`, keys
// of the next head: the cache of all heads does not fit into the processor's near caches.
template <int N>
inline void mix(const float* weight, const float* value, int64_t count, int64_t width, float factor,
                float* to, const float* next) {
  V even[N] = {}, odd[N] = {};
  int64_t c = 0;
  for (; c + 1 < count; c += 2) {
    const V p = full<V>(weight[c]), q = full<V>(weight[c + 1]);
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) {
      even[n] += p * at(value + c * width + n * wide);
      odd[n] += q * at(value + (c + 1) * width + n * wide);
      if (n * wide % 16) continue;
      __builtin_prefetch(next + c * width + n * wide, 0, 2);
      __builtin_prefetch(next + (c + 1) * width + n * wide, 0, 2);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < N; ++n) {
    if (c < count) even[n] += full<V>(weight[c]) * at(value + c * width + n * wide);
    store((even[n] + odd[n]) * factor, to + n * wide);
  }
}

// softmax(q . keys) values over the columns first .. last.
inline void attend_head(const Attention& a, const float* q, const float* keys, const float* values,
                        int64_t first, int64_t last, float* scores, float* to, const float* next) {
  const int64_t E = a.width;
  for (int64_t c = first; c <= last; c += wide) {
    // At the end of the cache some columns are computed a second time.
    const int64_t begin = std::min(c, a.columns - wide);
    const float* key = keys + begin * E;
    V part[wide] = {};
    for (int64_t e = 0; e < E; e += wide) {
      const V x = at(q + e);
#pragma GCC unroll 16
      for (int64_t k = 0; k < wide; ++k) part[k] += x * at(key + k * E + e);
    }
    for (int64_t i = 0; i < wide * E; i += 16) __builtin_prefetch(values + begin * E + i, 0, 2);
    store(lane_sums(part), scores + begin);
  }
  store(full<V>(-INFINITY), scores + last + 1);
  V peaks = full<V>(-INFINITY), total{};
  for (int64_t c = first; c <= last; c += wide) peaks = at_least(at(scores + c), peaks);
  float peak = peaks[0];
  for (int64_t k = 1; k < wide; ++k) peak = std::max(peak, peaks[k]);
  for (int64_t c = first; c <= last; c += wide) {
    const V p = exp(at(scores + c) - peak);
    total += p;
    store(p, scores + c);
  }
  const float share = 1.0f / sum(total);
  const float *weight = scores + first, *value = values + first * E;
  const int64_t count = last + 1 - first;
  int64_t e = 0;
  for (; e + 4 * wide <= E; e += 4 * wide) mix<4>(weight, value + e, count, E, share, to + e, next + e);
  for (; e + 2 * wide <= E; e += 2 * wide) mix<2>(weight, value + e, count, E, share, to + e, next + e);
  if (e < E) mix<1>(weight, value + e, count, E, share, to + e, next + e);
}

}  // namespace stamm

// x += added, unless that is NULL; normal = x / sqrt(mean(x^2) + eps) weight, all (rows, width).
extern "C" void add_norm(float* x, const float* added, const float* weight, float* normal,
                         int64_t rows, int64_t width, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += width, normal += width) {
    if (added)
      for (int64_t i = 0; i < width; ++i) x[i] += added[r * width + i];
    const float scale = stamm::inverse_rms(x, width, eps);
    for (int64_t i = 0; i < width; ++i) normal[i] = x[i] * scale * weight[i];
  }
}

// Appends keys and values to column `column` of the cache, and attends. qkv (rows, heads + 2 kv_heads,
// width); lengths: tokens of each row before this one; to (rows, heads, width).
extern "C" void attend_step(const stamm::Attention* attention, const float* qkv, const int64_t* lengths,
                            int64_t column, float* to, int threads) {
  using namespace stamm;
  const Attention& a = *attention;
  const int64_t E = a.width, group = a.heads / a.kv_heads, all = a.heads + 2 * a.kv_heads;
  const float factor = 1.0f / std::sqrt(static_cast<float>(E));
  if (a.rows * a.heads * column * E < 1 << 16) threads = 1;  // it takes less than starting others
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t task = 0; task < a.rows * a.kv_heads; ++task) {
    const int64_t r = task / a.kv_heads, of = task % a.kv_heads;
    const int64_t length = std::min(lengths[r], column);
    const float* angle = a.angles + length * E;
    const float* row = qkv + r * all * E;
    float *keys = a.keys + task * a.columns * E, *values = a.values + task * a.columns * E;
    turn(a, row + (a.heads + of) * E, a.heads + of, angle, 1.0f, keys + column * E);
    std::memcpy(values + column * E, row + (a.heads + a.kv_heads + of) * E, E * sizeof(float));
    for (int64_t head = of * group; head < (of + 1) * group; ++head) {
      float q[512];
      turn(a, row + head * E, head, angle, factor, q);
      attend_head(a, q, keys, values, column - length, column,
                  a.scores + (r * a.heads + head) * (a.columns + 2 * wide),
                  to + (r * a.heads + head) * E, keys + (column - length + a.columns) * E);
    }
  }
}
