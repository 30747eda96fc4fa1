// Matrix products in float32 whose bits depend on the factors alone: not on the processor, the vectors' width,
// the number of threads or a matrix's layout in memory.
//
// Every output is a chain of fused multiply-adds over `depth` steps of k, from 0 and in their order; the chains
// of a long k are then added in order. Lanes of a vector are columns, so that no lanes are ever added up.
//
// Source   Van Zee and van de Geijn 2015 (BLIS, doi 10.1145/2764454) for the blocks that stay in cache
#pragma once
#include <omp.h>

#include <array>

#include "vectors.h"

namespace stamm {

constexpr int64_t wide = lanes<float>;
constexpr int64_t depth = 256;       // k of a chain: part of the definition of the result
constexpr int64_t across = 2;        // vectors of a tile
constexpr int64_t tile_columns = across * wide;
#if defined(__AVX512F__)
constexpr int64_t tile_rows = 12;  // 24 sums fit into 32 registers
#else
constexpr int64_t tile_rows = 6;  // 12 into 16
#endif
constexpr int64_t block_rows = 96, block_columns = 512;
constexpr int64_t serial = 1 << 15;  // fewer multiplications: waking threads takes longer
static_assert(block_rows % tile_rows == 0 && block_columns % tile_columns == 0);

// A matrix, or a batch of them; steps in elements.
struct Matrix {
  float* data;
  int64_t batch, row, column;
};

inline Vector<float> fused(Vector<float> x, Vector<float> y, Vector<float> z) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__FMA__)
  return (Vector<float>)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#else
  for (int k = 0; k < wide; ++k) z[k] = std::fma(x[k], y[k], z[k]);
  return z;
#endif
}

// Groups of `size` neighbours (rows of the left factor, columns of the right one), k by k, the last filled with 0.
template <int64_t size>
inline void pack(const float* from, int64_t next, int64_t k_step, int64_t count, int64_t ks, float* to) {
  for (int64_t first = 0; first < count; first += size, to += size * ks) {
    const float* here = from + first * next;
    const int64_t held = std::min(size, count - first);
    if (held < size) std::fill(to, to + size * ks, 0.0f);
    if (next == 1) {
      for (int64_t k = 0; k < ks; ++k)
        for (int64_t i = 0; i < held; ++i) to[k * size + i] = here[k * k_step + i];
    } else if (held == size) {
      for (int64_t k = 0; k < ks; ++k)
#pragma GCC unroll 32
        for (int64_t i = 0; i < size; ++i) to[k * size + i] = here[i * next + k * k_step];
    } else {
      for (int64_t i = 0; i < held; ++i)
        for (int64_t k = 0; k < ks; ++k) to[k * size + i] = here[i * next + k * k_step];
    }
  }
}

// A tile of the result: = or += alpha times the chains of ks packed rows and columns.
inline void tile(const float* left, const float* right, int64_t ks, float alpha, bool add, float* to,
                 int64_t row, int64_t column, int64_t rows, int64_t columns) {
  using V = Vector<float>;
  V sum[tile_rows][across] = {};
  for (int64_t k = 0; k < ks; ++k) {
    V x[across];
#pragma GCC unroll 4
    for (int c = 0; c < across; ++c) load(right + k * tile_columns + c * wide, x[c]);
#pragma GCC unroll 16
    for (int r = 0; r < tile_rows; ++r) {
      const V a = full<V>(left[k * tile_rows + r]);
#pragma GCC unroll 4
      for (int c = 0; c < across; ++c) sum[r][c] = fused(a, x[c], sum[r][c]);
    }
  }
  const bool whole = rows == tile_rows && columns == tile_columns && column == 1;
  float held[tile_rows][tile_columns];
#pragma GCC unroll 16
  for (int r = 0; r < tile_rows; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < across; ++c) {
      const V scaled = sum[r][c] * alpha;
      float* place = whole ? to + r * row + c * wide : &held[r][c * wide];
      V before{};
      if (whole && add) load(place, before);
      store(whole && add ? before + scaled : scaled, place);
    }
  if (whole) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      float& place = to[r * row + c * column];
      place = add ? place + held[r][c] : held[r][c];
    }
}

// The rows and columns of one thread.
inline void part(const float* left, const Matrix& a, const float* right, const Matrix& b, float* to,
                 const Matrix& y, int64_t rows, int64_t columns, int64_t inner, float alpha, bool add) {
  alignas(64) static thread_local float lefts[block_rows * depth], rights[block_columns * depth];
  for (int64_t k = 0; k < inner; k += depth, add = true) {
    const int64_t ks = std::min(depth, inner - k);
    for (int64_t c = 0; c < columns; c += block_columns) {
      const int64_t cs = std::min(block_columns, columns - c);
      pack<tile_columns>(right + k * b.row + c * b.column, b.column, b.row, cs, ks, rights);
      for (int64_t r = 0; r < rows; r += block_rows) {
        const int64_t rs = std::min(block_rows, rows - r);
        pack<tile_rows>(left + r * a.row + k * a.column, a.row, a.column, rs, ks, lefts);
        for (int64_t j = 0; j < cs; j += tile_columns)
          for (int64_t i = 0; i < rs; i += tile_rows)
            tile(lefts + i * ks, rights + j * ks, ks, alpha, add,
                 to + (r + i) * y.row + (c + j) * y.column, y.row, y.column,
                 std::min(tile_rows, rs - i), std::min(tile_columns, cs - j));
      }
    }
  }
}

}  // namespace stamm

// y = alpha a b, or y += alpha a b. sizes: batch, rows, columns, inner (not 0).
extern "C" void products(const stamm::Matrix* matrices, const int64_t* sizes, float alpha, int add, int threads) {
  using namespace stamm;
  const auto [a, b, y] = std::array{matrices[0], matrices[1], matrices[2]};
  const int64_t batch = sizes[0], rows = sizes[1], columns = sizes[2], inner = sizes[3];
  // A thread takes whole matrices; of few matrices some rows, or some columns where there are more.
  const int64_t pieces = batch >= threads ? 1 : (threads + batch - 1) / batch;
  const bool tall = rows >= columns;
  const int64_t step = tall ? tile_rows : tile_columns, size = tall ? rows : columns;
  const int64_t share = ((size + step - 1) / step + pieces - 1) / pieces * step;
  const bool many = threads > 1 && batch * rows * columns * inner >= serial;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (many)
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t first = piece * share, held = std::min(share, size - first);
      if (held <= 0) continue;
      const int64_t r = tall ? first : 0, c = tall ? 0 : first;
      part(a.data + n * a.batch + r * a.row, a, b.data + n * b.batch + c * b.column, b,
           y.data + n * y.batch + r * y.row + c * y.column, y, tall ? held : rows, tall ? columns : held,
           inner, alpha, add);
    }
}

extern "C" void roots(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::sqrt(x[i]);
}
extern "C" void wide_roots(const double* x, double* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = std::sqrt(x[i]);
}
