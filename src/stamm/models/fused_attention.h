// Causal attention within documents, forward and backward, in float32.
//
// Queries lie along the lanes: a block of 64 is a few vectors (four with AVX-512), and scores, probabilities and outputs
// are kept transposed, key by key or feature by feature. So a softmax is a sum over rows, and every
// product is `tile`: numbers of one side, one by one, times vectors of the other.
//
// Blocks start at multiples of 64 of a row. Keys that no query of a vector attends to are skipped
// in steps of four; a masked key inside such a step counts as exactly 0.
// All sums start at 0 and go in the order of tokens, so that a document's numbers do not depend on
// what else is in its row, nor on the number of threads: one of them owns a head's sums.
//
// Scores are in powers of two: y = q . k log2(e) / sqrt(E), softmax = 2^(y - peak) / sum.
#pragma once
#include <climits>
#include <new>

#include <omp.h>

#include <utility>

#include "vectors.h"

namespace stamm {

using V = Vector<float>;
using I = vector_of<float>::whole;
constexpr int64_t wide = lanes<float>;
constexpr int64_t side = 64;  // queries of a block, and keys
constexpr int64_t vectors = side / wide;
constexpr int64_t step = 4;      // keys that are left out or not
constexpr int64_t summed = 64;   // products that a score adds up before they join the rest
#if defined(__AVX512F__)
constexpr int64_t most = 4;  // vectors of a tile: its sums fit into 32 registers
#else
constexpr int64_t most = 2;  // likewise into 16
#endif

inline V at(const float* from) {
  V x;
  load(from, x);
  return x;
}

// How a sum is stored: it replaces the value in memory, starts from it, or is added to it at the end.
enum class Join { none, first, last };

// to[r][c] += sum over d of left[r][d] right[d][c], or = with Join::none.
template <int R, int C>
inline void tile(const float* left, int64_t row, int64_t next, const float* right,
                 int64_t right_row, int64_t depth, float* to, int64_t to_row, Join join) {
  V sum[R][C];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) sum[r][c] = join == Join::first ? at(to + r * to_row + c * wide) : V{};
  for (int64_t d = 0; d < depth; ++d) {
    V x[C];
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) x[c] = at(right + d * right_row + c * wide);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const V a = full<V>(left[r * row + d * next]);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) sum[r][c] += a * x[c];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      float* place = to + r * to_row + c * wide;
      store(join == Join::last ? at(place) + sum[r][c] : sum[r][c], place);
    }
}

template <int C>
inline void tiles(int64_t rows, const float* left, int64_t row, int64_t next, const float* right,
                  int64_t right_row, int64_t depth, float* to, int64_t to_row, Join join) {
  constexpr int R = C == 1 ? 4 * most : C == most ? 4 : 8;
  int64_t r = 0;
  for (; r + R <= rows; r += R)
    tile<R, C>(left + r * row, row, next, right, right_row, depth, to + r * to_row, to_row, join);
  for (; r < rows; r += 4)
    tile<4, C>(left + r * row, row, next, right, right_row, depth, to + r * to_row, to_row, join);
}

// The same for `rows`, a multiple of four, and `count` vectors.
inline void product(int64_t rows, int64_t count, const float* left, int64_t row, int64_t next,
                    const float* right, int64_t right_row, int64_t depth, float* to,
                    int64_t to_row, Join join) {
  for (int64_t c = 0; c < count; c += most) {
    const float* x = right + c * wide;
    float* y = to + c * wide;
    switch (std::min(most, count - c)) {
      case 1: tiles<1>(rows, left, row, next, x, right_row, depth, y, to_row, join); break;
      case 2: tiles<2>(rows, left, row, next, x, right_row, depth, y, to_row, join); break;
#ifdef __AVX512F__
      case 3: tiles<3>(rows, left, row, next, x, right_row, depth, y, to_row, join); break;
      case 4: tiles<4>(rows, left, row, next, x, right_row, depth, y, to_row, join); break;
#endif
    }
  }
}

// 2^x for x up to 127; 0 below -125, where results would be subnormal, which processors are slow
// at; NaN for NaN. Within 2e-9 of itself before it is rounded.
inline V power(V x) {
  const V least = full<V>(-125.0f), held = at_least(x, least);
  const V k = (held + 12582912.0f) - 12582912.0f, r = held - k;
  V p = full<V>(1.5353361959569156e-4f);
  p = p * r + 1.3398875016719103e-3f;
  p = p * r + 9.61843691766262e-3f;
  p = p * r + 5.5503323674201965e-2f;
  p = p * r + 2.4022647738456726e-1f;
  p = p * r + 6.931471824645996e-1f;
  return x < least ? V{} : scaled(p * r + 1.0f, k);
}

#if defined(__clang__)
#define STAMM_PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define STAMM_PICK(a, b, ...) __builtin_shuffle(a, b, I{__VA_ARGS__})
#endif
// One step of a transposition: squares of S x S off the diagonal change places.
template <int S, int... J>
inline void swap_squares(V& a, V& b, std::integer_sequence<int, J...>) {
  const V upper = STAMM_PICK(a, b, (J & S ? wide + J - S : J)...);
  b = STAMM_PICK(a, b, (J & S ? wide + J : J + S)...);
  a = upper;
}
template <int S = 1>
inline void transpose(V* x) {
#pragma GCC unroll 16
  for (int k = 0; k < wide; ++k)
    if (!(k & S)) swap_squares<S>(x[k], x[k + S], std::make_integer_sequence<int, wide>{});
  if constexpr (2 * S < wide) transpose<2 * S>(x);
}
// to[c][r] = from[r][c]; rows and columns are multiples of a vector's lanes.
inline void transpose(const float* from, int64_t from_row, int64_t rows, int64_t columns,
                      float* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; r += wide)
    for (int64_t c = 0; c < columns; c += wide) {
      V x[wide];
      for (int64_t k = 0; k < wide; ++k) x[k] = at(from + (r + k) * from_row + c);
      transpose(x);
      for (int64_t k = 0; k < wide; ++k) store(x[k], to + (c + k) * to_row + r);
    }
}

// A tensor of batch x heads x tokens x features; features lie side by side, steps in elements.
struct Rows {
  float* data;
  int64_t batch, head, token;
  float* of(int64_t b, int64_t h) const { return data + b * batch + h * head; }
};

struct Sizes {
  int64_t rows, heads, key_heads, tokens, features;
  int64_t padded() const { return (features + wide - 1) / wide * wide; }
  int64_t tall() const { return (tokens + side - 1) / side * side; }
};

// Pieces of memory aligned to vectors.
struct Pieces {
  float* free;
  float* take(int64_t count) {
    float* piece = free;
    free += (count + wide - 1) / wide * wide;
    return piece;
  }
};

// The attention mask of a block of 64 queries: each attends to keys start .. its own index.
struct QueryMask {
  int64_t first;
  I start[vectors], self[vectors];

  QueryMask(const int32_t* starts, int64_t tokens, int64_t first) : first(first) {
    for (int64_t k = 0; k < side; ++k) {
      start[k / wide][k % wide] = first + k < tokens ? starts[first + k] : INT_MAX;
      self[k / wide][k % wide] = first + k;
    }
  }
  // The first block of keys.
  int64_t from() const { return start[0][0] / side * side; }
  bool whole(int64_t c, int64_t key) const {
    return key >= start[c][wide - 1] && key <= self[c][0];
  }
  V masked(int64_t c, int64_t key, V x) const {
    const I n = static_cast<int32_t>(key) - I{};
    return (start[c] <= n) & (self[c] >= n) ? x : full<V>(-INFINITY);
  }
};

// Visible keys of a block: `first` to `end` for each vector of queries, and the same by keys: parts
// to which the vectors from `left` to `right` attend.
struct Part {
  int64_t first, end, left, right;
};
struct VisibleKeys {
  int64_t first[vectors], end[vectors], count = 0;
  Part parts[2 * vectors];

  VisibleKeys(const QueryMask& mask, int64_t key) {
    for (int64_t c = 0; c < vectors; ++c) {
      first[c] = std::max<int64_t>(0, mask.start[c][0] - key) / step * step;
      end[c] = std::min(side, (mask.self[c][wide - 1] - key) / step * step + step);
    }
    for (int64_t n = 0; n < side; n += step) {
      int64_t left = 0, right = vectors;
      while (left < vectors && end[left] <= n) ++left;
      while (right > left && first[right - 1] > n) --right;
      if (left == right) continue;
      if (count && parts[count - 1].end == n && parts[count - 1].left == left &&
          parts[count - 1].right == right)
        parts[count - 1].end = n + step;
      else
        parts[count++] = {n, n + step, left, right};
    }
  }
};

// Rows first .. first + 64 of a head, times `factor`, with zeros around.
inline void gather_rows(const float* from, int64_t from_row, int64_t first, const Sizes& s,
                        float factor, float* to) {
  const int64_t count = std::min(side, s.tokens - first), E = s.features;
  for (int64_t m = 0; m < count; ++m) {
    float* row = to + m * s.padded();
    for (int64_t e = 0; e < E; ++e) row[e] = from[(first + m) * from_row + e] * factor;
    for (int64_t e = E; e < s.padded(); ++e) row[e] = 0;
  }
  std::fill(to + count * s.padded(), to + side * s.padded(), 0.0f);
}
inline void scatter_rows(const float* from, int64_t from_row, int64_t count, int64_t features,
                         float factor, float* to, int64_t to_row) {
  for (int64_t m = 0; m < count; ++m)
    for (int64_t e = 0; e < features; ++e) to[m * to_row + e] = from[m * from_row + e] * factor;
}
// All tokens of a head side by side, with zeros up to a whole block.
inline void gather_head(const Rows& from, int64_t b, int64_t h, const Sizes& s, float* to) {
  const float* head = from.of(b, h);
  for (int64_t n = 0; n < s.tokens; ++n)
    std::memcpy(to + n * s.features, head + n * from.token, s.features * sizeof(float));
  std::fill(to + s.tokens * s.features, to + s.tall() * s.features, 0.0f);
}

// scores[n][m] of the visible parts, from a block of keys and the transposed queries. Wide
// heads are summed in pieces of 64 features, whose errors grow with the root of 64, not of E.
inline void multiply_visible(const VisibleKeys& visible, const float* left, int64_t E, const float* right,
                          float* to) {
  for (int64_t p = 0; p < visible.count; ++p) {
    const Part& part = visible.parts[p];
    for (int64_t e = 0; e < E; e += summed)
      product(part.end - part.first, part.right - part.left, left + part.first * E + e, E, 1,
              right + e * side + part.left * wide, side, std::min(summed, E - e),
              to + part.first * side + part.left * wide, side,
              e == 0 ? Join::none : Join::last);
  }
}
// to[e][m] += sum over keys of left[n][e] weights[n][m]
inline void add_queries(const VisibleKeys& visible, const float* left, int64_t E, const float* weights,
                        float* to) {
  for (int64_t p = 0; p < visible.count; ++p) {
    const Part& part = visible.parts[p];
    product(E, part.right - part.left, left + part.first * E, 1, E,
            weights + part.first * side + part.left * wide, side, part.end - part.first,
            to + part.left * wide, side, Join::first);
  }
}
// to[n][e] += sum over queries of weights[n][m] right[m][e]
inline void add_keys(const VisibleKeys& visible, const float* weights, const float* right, int64_t padded,
                     float* to) {
  for (int64_t p = 0; p < visible.count; ++p) {
    const Part& part = visible.parts[p];
    product(part.end - part.first, padded / wide, weights + part.first * side + part.left * wide,
            side, 1, right + part.left * wide * padded, padded, (part.right - part.left) * wide,
            to + part.first * padded, padded, Join::first);
  }
}

// Scores into powers of two of their distance from the peak; what was summed before is scaled.
inline void softmax_scores(const VisibleKeys& visible, const QueryMask& mask, int64_t key, float* scores,
                   V* peak, V* sum, float* output, int64_t E) {
  for (int64_t c = 0; c < vectors; ++c) {
    if (visible.first[c] >= visible.end[c]) continue;
    V best[step] = {peak[c], peak[c], peak[c], peak[c]}, added[step] = {};
    for (int64_t n = visible.first[c]; n < visible.end[c]; n += step)
#pragma GCC unroll 4
      for (int64_t j = 0; j < step; ++j) {
        float* place = scores + (n + j) * side + c * wide;
        V y = at(place);
        if (!mask.whole(c, key + n + j)) store(y = mask.masked(c, key + n + j, y), place);
        best[j] = at_least(y, best[j]);
      }
    const V now = at_least(at_least(best[0], best[1]), at_least(best[2], best[3]));
    for (int64_t n = visible.first[c]; n < visible.end[c]; n += step)
#pragma GCC unroll 4
      for (int64_t j = 0; j < step; ++j) {
        float* place = scores + (n + j) * side + c * wide;
        const V p = power(at(place) - now);
        store(p, place);
        added[j] += p;
      }
    const V kept = power(peak[c] - now), one = full<V>(1.0f);
    sum[c] = sum[c] * kept + ((added[0] + added[1]) + (added[2] + added[3]));
    peak[c] = now;
    if (std::memcmp(&kept, &one, sizeof(V)) == 0) continue;
    for (int64_t e = 0; e < E; ++e) {
      float* place = output + e * side + c * wide;
      store(at(place) * kept, place);
    }
  }
}

// The peak and 1/sum of each query, which is all that the backward pass needs to know.
struct Kept {
  float* data;
  float* peak(const Sizes& s, int64_t b, int64_t h) const {
    return data + (b * s.heads + h) * 2 * s.tokens;
  }
  float* share(const Sizes& s, int64_t b, int64_t h) const { return peak(s, b, h) + s.tokens; }
};

inline float score_factor(const Sizes& s) { return 1.4426950408889634 / std::sqrt(s.features); }

inline int64_t forward_memory(const Sizes& s) {
  return 2 * s.tall() * s.features + 3 * side * s.padded() + side * side;
}
inline void attend_head(const Sizes& s, int64_t b, int64_t h, const int32_t* starts, const Rows& q,
                        const Rows& k, const Rows& v, const Rows& o, Kept kept, Pieces memory) {
  const int64_t E = s.features, P = s.padded(), of = h / (s.heads / s.key_heads);
  float *keys = memory.take(s.tall() * E), *values = memory.take(s.tall() * E);
  float *row = memory.take(side * P), *queries = memory.take(side * P);
  float *output = memory.take(side * P), *scores = memory.take(side * side);
  gather_head(k, b, of, s, keys);
  gather_head(v, b, of, s, values);
  for (int64_t first = 0; first < s.tokens; first += side) {
    const QueryMask mask(starts, s.tokens, first);
    gather_rows(q.of(b, h), q.token, first, s, score_factor(s), row);
    transpose(row, P, side, P, queries, side);
    std::fill(output, output + side * P, 0.0f);
    V peak[vectors], sum[vectors] = {};
    for (V& each : peak) each = full<V>(-3.4028234663852886e38f);
    for (int64_t key = mask.from(); key <= first; key += side) {
      const VisibleKeys visible(mask, key);
      multiply_visible(visible, keys + key * E, E, queries, scores);
      softmax_scores(visible, mask, key, scores, peak, sum, output, E);
      add_queries(visible, values + key * E, E, scores, output);
    }
    const int64_t count = std::min(side, s.tokens - first);
    for (int64_t c = 0; c < vectors; ++c) {
      const V share = sum[c] == V{} ? V{} : 1.0f / sum[c];
      for (int64_t e = 0; e < E; ++e) {
        float* place = output + e * side + c * wide;
        store(at(place) * share, place);
      }
      const int64_t left = std::min(wide, count - c * wide);
      if (left <= 0) continue;
      std::memcpy(kept.peak(s, b, h) + first + c * wide, &peak[c], left * sizeof(float));
      std::memcpy(kept.share(s, b, h) + first + c * wide, &share, left * sizeof(float));
    }
    transpose(output, side, P, side, row, P);
    scatter_rows(row, P, count, E, 1.0f, o.of(b, h) + first * o.token, o.token);
  }
}

// Probabilities from scores, and slopes from what a change of each probability is worth.
inline void score_gradients(const VisibleKeys& visible, const QueryMask& mask, int64_t key, const V* peak,
                    const V* mean, float* scores, float* slopes) {
  for (int64_t c = 0; c < vectors; ++c)
    for (int64_t n = visible.first[c]; n < visible.end[c]; n += step)
#pragma GCC unroll 4
      for (int64_t j = 0; j < step; ++j) {
        const int64_t place = (n + j) * side + c * wide;
        V y = at(scores + place);
        if (!mask.whole(c, key + n + j)) y = mask.masked(c, key + n + j, y);
        const V p = power(y - peak[c]);
        store(p, scores + place);
        store(p * (at(slopes + place) - mean[c]), slopes + place);
      }
}

inline int64_t backward_memory(const Sizes& s) {
  return 2 * s.tall() * (s.features + s.padded()) + 6 * side * s.padded() + 2 * side * side;
}
// All query heads of a key head.
inline void differentiate_head(const Sizes& s, int64_t b, int64_t of, const int32_t* starts,
                               const Rows* given, const Rows* made, Kept kept, Pieces memory) {
  const auto& [q, k, v, o, d_o] = *reinterpret_cast<const Rows(*)[5]>(given);
  const auto& [d_q, d_k, d_v] = *reinterpret_cast<const Rows(*)[3]>(made);
  const int64_t E = s.features, P = s.padded(), group = s.heads / s.key_heads;
  float *keys = memory.take(s.tall() * E), *values = memory.take(s.tall() * E);
  float *d_keys = memory.take(s.tall() * P), *d_values = memory.take(s.tall() * P);
  float *q_row = memory.take(side * P), *queries = memory.take(side * P);
  float *g_row = memory.take(side * P), *into = memory.take(side * P);
  float *d_queries = memory.take(side * P), *o_row = memory.take(side * P);
  float *scores = memory.take(side * side), *slopes = memory.take(side * side);
  gather_head(k, b, of, s, keys);
  gather_head(v, b, of, s, values);
  std::fill(d_keys, d_keys + s.tall() * P, 0.0f);
  std::fill(d_values, d_values + s.tall() * P, 0.0f);
  for (int64_t h = of * group; h < (of + 1) * group; ++h)
    for (int64_t first = 0; first < s.tokens; first += side) {
      const QueryMask mask(starts, s.tokens, first);
      const int64_t count = std::min(side, s.tokens - first);
      V peak[vectors] = {}, mean[vectors];
      std::memcpy(peak, kept.peak(s, b, h) + first, count * sizeof(float));
      const float* share = kept.share(s, b, h) + first;
      gather_rows(q.of(b, h), q.token, first, s, score_factor(s), q_row);
      gather_rows(d_o.of(b, h), d_o.token, first, s, 1.0f, g_row);
      gather_rows(o.of(b, h), o.token, first, s, 1.0f, o_row);
      for (int64_t m = 0; m < count; ++m)
        for (int64_t e = 0; e < P; ++e) g_row[m * P + e] *= share[m];
      for (int64_t c = 0; c < vectors; ++c) {
        V dot[wide] = {};
        for (int64_t m = 0; m < wide; ++m)
          for (int64_t e = 0; e < P; e += wide)
            dot[m] += at(g_row + (c * wide + m) * P + e) * at(o_row + (c * wide + m) * P + e);
        transpose(dot);
        for (int64_t apart = wide / 2; apart > 0; apart /= 2)
          for (int64_t m = 0; m < apart; ++m) dot[m] += dot[m + apart];
        mean[c] = dot[0];
      }
      transpose(q_row, P, side, P, queries, side);
      transpose(g_row, P, side, P, into, side);
      std::fill(d_queries, d_queries + side * P, 0.0f);
      for (int64_t key = mask.from(); key <= first; key += side) {
        const VisibleKeys visible(mask, key);
        multiply_visible(visible, keys + key * E, E, queries, scores);
        multiply_visible(visible, values + key * E, E, into, slopes);
        score_gradients(visible, mask, key, peak, mean, scores, slopes);
        add_keys(visible, scores, g_row, P, d_values + key * P);
        add_keys(visible, slopes, q_row, P, d_keys + key * P);
        add_queries(visible, keys + key * E, E, slopes, d_queries);
      }
      transpose(d_queries, side, P, side, o_row, P);
      scatter_rows(o_row, P, count, E, 1.0f / std::sqrt(static_cast<float>(E)),
                   d_q.of(b, h) + first * d_q.token, d_q.token);
    }
  scatter_rows(d_keys, P, s.tokens, E, 0.6931471805599453f, d_k.of(b, of), d_k.token);
  scatter_rows(d_values, P, s.tokens, E, 1.0f, d_v.of(b, of), d_v.token);
}

// The first token of each token's document, or false where numbers decrease. NULL: one document.
inline bool find_starts(const int64_t* document, int64_t row_step, const Sizes& s, int32_t* to) {
  for (int64_t b = 0; b < s.rows; ++b) {
    const int64_t* row = document + b * row_step;
    int32_t start = 0;
    for (int64_t t = 0; t < s.tokens; ++t) {
      if (document && t && row[t] != row[t - 1]) {
        if (row[t] < row[t - 1]) return false;
        start = static_cast<int32_t>(t);
      }
      to[b * s.tokens + t] = start;
    }
  }
  return true;
}

enum Trouble { none = 0, decreasing = 1, no_memory = 2 };

// Calls work(row, head, starts of the row, a thread's own memory) for `heads` heads of each row.
template <class F>
inline int for_heads(const Sizes& s, int64_t heads, const int64_t* document, int64_t row_step,
                     int64_t floats, int threads, F work) {
  const int64_t count = s.rows * heads;
  threads = static_cast<int>(std::min<int64_t>(threads, count));
  if (threads < 1) return none;
  floats = (floats + side) / side * side;
  const std::align_val_t suits{64};
  auto starts = new (std::nothrow) int32_t[s.rows * s.tokens];
  auto memory = static_cast<float*>(
      operator new(threads * floats * sizeof(float), suits, std::nothrow));
  int trouble = starts && memory ? none : no_memory;
  if (!trouble && !find_starts(document, row_step, s, starts)) trouble = decreasing;
  if (!trouble) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t k = 0; k < count; ++k)
      work(k / heads, k % heads, starts + k / heads * s.tokens,
           Pieces{memory + omp_get_thread_num() * floats});
  }
  operator delete(memory, suits);
  delete[] starts;
  return trouble;
}

}  // namespace stamm

// tensors: q, k, v, o
extern "C" void attention(const stamm::Rows* tensors, const stamm::Sizes* sizes,
                          const int64_t* document, int64_t row_step, float* kept, int threads,
                          int* trouble) {
  using namespace stamm;
  *trouble = for_heads(*sizes, sizes->heads, document, row_step, forward_memory(*sizes), threads,
                       [&](int64_t b, int64_t h, const int32_t* starts, Pieces memory) {
                         attend_head(*sizes, b, h, starts, tensors[0], tensors[1], tensors[2],
                                     tensors[3], Kept{kept}, memory);
                       });
}

// tensors: q, k, v, o, d_o, d_q, d_k, d_v
extern "C" void attention_backward(const stamm::Rows* tensors, const stamm::Sizes* sizes,
                                   const int64_t* document, int64_t row_step, float* kept,
                                   int threads, int* trouble) {
  using namespace stamm;
  *trouble = for_heads(*sizes, sizes->key_heads, document, row_step, backward_memory(*sizes),
                       threads, [&](int64_t b, int64_t h, const int32_t* starts, Pieces memory) {
                         differentiate_head(*sizes, b, h, starts, tensors, tensors + 5,
                                            Kept{kept}, memory);
                       });
}
