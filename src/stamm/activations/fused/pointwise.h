// The loops around a generated pass: blocks that stay in cache, threads, and sums in a fixed order.
//
// A pass is a struct of the generated source:
//   Number                        float or double: the computing dtype
//   inputs, outputs, sums         number of tensors read and written, and of sums
//   parameters, uniforms          number of parameters read, and of values of parameters only
//   prepare(parameters, uniforms) from vectors to vectors, in double: it may cancel
//   apply(in, uniforms, out, sum) for one vector
//
// Every sum is a tree that depends on the shape and the vectors' width only: the lanes of a vector,
// lanes in pairs, a chunk, chunks. It does not depend on the number of threads.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace stamm {

constexpr int64_t block = 512;        // elements that are in flight at once
constexpr int64_t summed = 32 * vector_bytes;  // elements that lanes add up: 128 in each of float32
constexpr int64_t chunk = STAMM_CHUNK;  // what one thread takes at a time, and sums up
constexpr int64_t serial = 1 << 15;     // fewer elements: waking threads takes longer
constexpr int64_t rows_at_once = STAMM_ROWS;  // likewise where columns have their own parameters
static_assert(chunk % summed == 0);

// A tensor of rows x columns; steps in elements.
struct Strided {
  void* data;
  int64_t row_step, column_step;
};

// `size` elements from `first` on, counted row by row: their address, or nullptr when they are not
// contiguous or do not fill whole vectors of `step` elements.
template <class T>
inline T* place(const Strided& t, int64_t columns, int64_t first, int64_t size, int64_t step) {
  const int64_t row = first / columns, column = first % columns;
  if (t.column_step != 1 || column + size > columns || size % step != 0) return nullptr;
  return static_cast<T*>(t.data) + row * t.row_step + column;
}
template <class T>
inline void collect(const Strided& t, int64_t columns, int64_t first, int64_t size, T* to) {
  if (const T* from = place<T>(t, columns, first, size, 1)) {
    std::memcpy(to, from, size * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < size; ++i) {
    const int64_t row = (first + i) / columns, column = (first + i) % columns;
    to[i] = static_cast<T*>(t.data)[row * t.row_step + column * t.column_step];
  }
}
template <class T>
inline void scatter(const T* from, const Strided& t, int64_t columns, int64_t first, int64_t size) {
  if (T* to = place<T>(t, columns, first, size, 1)) {
    std::memcpy(to, from, size * sizeof(T));
    return;
  }
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

// A pass over at most a block of elements. uniforms(i) and add(i, sums) receive the index.
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

// Values of parameters only, computed in double and rounded once to the lanes of V.
// parameter(k, lane) is the number of parameter k there.
template <class P, class V, class F>
inline void prepared(F parameter, V* uniforms) {
  using Wide = Vector<double>;
  constexpr int count = lanes<number_of<V>>, step = lanes<double>;
  for (int first = 0; first < count; first += step) {
    Wide given[P::parameters + 1] = {}, found[P::uniforms + 1];
    for (int k = 0; k < P::parameters; ++k)
      for (int j = 0; j < step; ++j) given[k][j] = parameter(k, first + j);
    P::prepare(given, found);
    for (int k = 0; k < P::uniforms; ++k)
      for (int j = 0; j < step; ++j) uniforms[k][first + j] = found[k][j];
  }
}

// One number for each parameter. partial: sums doubles for each chunk.
template <class P, class T>
void run(const Strided* in, const Strided* out, int64_t rows, int64_t columns,
         const double* parameters, double* sums, double* partial, int threads) {
  using C = typename P::Number;
  using V = Vector<C>;
  const int64_t count = rows * columns, chunks = (count + chunk - 1) / chunk;
  V uniforms[P::uniforms + 1];
  prepared<P>([&](int k, int) { return parameters[k]; }, uniforms);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (count >= serial)
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
      // A lane adds up 128 numbers (256 of float64) before its sum is added in float64.
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
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads) \
    if (rows * columns >= serial)
  for (int64_t r = 0; r < tall; ++r) {
    for (int64_t b = 0; b < wide; ++b) {
      V uniforms[block / lanes<C>][P::uniforms + 1];
      V sum[block / lanes<C>][P::sums + 1] = {};
      const int64_t left = b * block, size = std::min(block, columns - left);
      for (int64_t i = 0; i < size; i += lanes<C>) {
        prepared<P>([&](int k, int j) {
          return parameters[k * columns + std::min(left + i + j, columns - 1)];
        }, uniforms[i / lanes<C>]);
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
