// A step of decoding, in float32: one new token of each row through all layers to the logits.
//
// A row's numbers depend neither on other rows nor on the number of threads. Widths of the residual
// stream and of heads are multiples of a vector's lanes.
#pragma once
#include <omp.h>

#include <algorithm>
#include <utility>

#include "pointwise.h"

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

// A matrix (outputs, inputs); inputs of a multiple of 16. packed: rows in blocks of 4, whose numbers
// alternate by 16, padded to a multiple of 4 rows: it is read from the first number to the last, which
// processors prefetch at twice the rate of 4 rows.
struct Matrix {
  const float *weight, *bias;
  int64_t outputs, inputs, packed;
};
struct Product {
  const Matrix& matrix;
  float* y;
  int64_t step;  // from a row of y to the next
};
constexpr int64_t block_rows = 4, piece = 16;
constexpr int tile_rows = wide / block_rows;  // of x: the sums of a tile fill one vector

// sums[4 m + r] = x[m] . weight[r]. A sum has the same bits for every M, and packed or not. Meanwhile
// fetches `lines` of 64 bytes for every piece: of the next block, which is not read before all tiles
// of this one are computed.
template <int M, int lines>
inline void tile(const float* const* weight, int64_t step, const float* x, int64_t x_step,
                 int64_t inputs, float* sums, const char* next, int64_t next_step) {
  V part[wide] = {};
  for (int64_t i = 0; i < inputs; i += piece, next += next_step) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < piece; j += wide) {
      V w[block_rows];
#pragma GCC unroll 4
      for (int r = 0; r < block_rows; ++r) w[r] = at(weight[r] + i / piece * step + j);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        const V given = at(x + m * x_step + i + j);
#pragma GCC unroll 4
        for (int r = 0; r < block_rows; ++r) part[m * block_rows + r] += given * w[r];
      }
    }
#pragma GCC unroll 2
    for (int line = 0; line < lines; ++line) __builtin_prefetch(next + 64 * line, 0, 2);
  }
  store(lane_sums(part), sums);
}
using Tile = void(const float* const*, int64_t, const float*, int64_t, int64_t, float*, const char*,
                  int64_t);
template <int M = tile_rows>
inline Tile* pick(int64_t tall, int64_t tiles) {
  if constexpr (M > 1)
    if (tall < M) return pick<M - 1>(tall, tiles);
  return tiles == 1 ? tile<M, 0> : tiles < 4 ? tile<M, 2> : tile<M, 1>;
}

// Outputs o .. o + 3 of all rows of x.
inline void multiply_block(const Product& p, int64_t o, const float* x, int64_t x_step, int64_t rows) {
  const Matrix& a = p.matrix;
  const float* weight[block_rows];
  for (int64_t r = 0; r < block_rows; ++r)
    weight[r] = a.weight + (a.packed ? o * a.inputs + r * piece
                                     : std::min(o + r, a.outputs - 1) * a.inputs);
  const int64_t step = a.packed ? block_rows * piece : piece;
  const int64_t count = std::min(block_rows, a.outputs - o);
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  const int64_t next_step = block_rows * piece * sizeof(float) / tiles;
  const char* next = reinterpret_cast<const char*>(a.weight + (o + block_rows) * a.inputs);
  for (int64_t n = 0; n < tiles; ++n, next += a.inputs / piece * next_step) {
    const int64_t m = rows * n / tiles, tall = rows * (n + 1) / tiles - m;
    float sums[wide];
    pick(tall, tiles)(weight, step, x + m * x_step, x_step, a.inputs, sums, next, next_step);
    for (int64_t k = 0; k < tall; ++k) {
      float* y = p.y + (m + k) * p.step + o;
      for (int64_t r = 0; r < count; ++r)
        y[r] = sums[k * block_rows + r] + (a.bias ? a.bias[o + r] : 0.0f);
    }
  }
}

// y = x weight' + bias for several matrices; x (rows, inputs).
template <size_t N>
inline void multiply(const Product (&products)[N], const float* x, int64_t x_step, int64_t rows,
                     int threads) {
  int64_t ends[N], blocks = 0;
  for (size_t n = 0; n < N; ++n)
    ends[n] = blocks += (products[n].matrix.outputs + block_rows - 1) / block_rows;
  if (rows * blocks * products[0].matrix.inputs < 1 << 14) threads = 1;  // as in `attend_step`
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t b = 0; b < blocks; ++b) {
    size_t n = 0;
    while (b >= ends[n]) ++n;
    multiply_block(products[n], (b - (n ? ends[n - 1] : 0)) * block_rows, x, x_step, rows);
  }
}

// A pass of `pointwise.h` in a shared object of its own.
using Pass = void(const Strided* in, const Strided* out, int64_t rows, int64_t columns,
                  const double* parameters, double* sums, double* partial, int threads);

// A matrix, or one of low rank: `last` multiplies what `first` gives. first.weight: NULL where there is one.
struct Factors {
  Matrix first, last;
  const Matrix& of_input() const { return first.weight ? first : last; }
};
// A feed-forward block, or an expert of one; gate.last.weight: NULL in a plain block.
struct Block {
  Factors gate, up, down;
};

// blocks: one, or the experts, of equal sizes, where router.weight is not NULL: the first `shared` act on
// every row, and of the others those with the largest scores, `active` together. parameters: one number
// each, or one for each column.
struct Layer {
  Attention attention;
  const float *attention_norm, *ffn_norm;
  float attention_eps, ffn_eps;
  Matrix q, k, v, out, router;
  const Block* blocks;
  int64_t shared, active;
  Pass* activation;
  const double* parameters;
  int64_t by_column;
};

// Buffers for all rows: normal and added (d_model), qkv, attended (heads, width), and gate and up, which
// are as wide as the inputs of a layer's last matrix, and 0 behind its outputs: rows of a block, or a row's
// acting experts. inner: what first factors give, of two matrices, also 0 behind. multiplied: (row, expert)
// pairs so far.
struct Stack {
  const Layer* layers;
  int64_t count, rows, d_model;
  const float* norm;
  float eps;
  Matrix head;
  float *normal, *added, *qkv, *attended, *gate, *up, *inner;
  int64_t* multiplied;
};

// Inputs of a block's activation in gate and up, from row `first` of these.
inline void enter(const Block& block, const Stack& s, const float* x, int64_t rows, int64_t first,
                  int threads) {
  const int64_t step = block.down.of_input().inputs;
  const Product up{block.up.last, s.up + first * step, step};
  const Product gate{block.gate.last, s.gate + first * step, step};
  if (block.up.first.weight) {
    const int64_t rank = block.up.last.inputs;
    float* of_gate = s.inner + rows * rank;
    const Product inner{block.up.first, s.inner, rank};
    if (block.gate.last.weight) {
      multiply<2>({inner, {block.gate.first, of_gate, rank}}, x, s.d_model, rows, threads);
      multiply<1>({gate}, of_gate, rank, rows, threads);
    } else {
      multiply<1>({inner}, x, s.d_model, rows, threads);
    }
    multiply<1>({up}, s.inner, rank, rows, threads);
  } else if (block.gate.last.weight) {
    multiply<2>({gate, up}, x, s.d_model, rows, threads);
  } else {
    multiply<1>({up}, x, s.d_model, rows, threads);
  }
}

// up = f(up), or f(gate) up.
inline void activate(const Layer& layer, const Stack& s, int64_t rows, int threads) {
  const Block& block = layer.blocks[0];
  const int64_t width = block.up.last.outputs, step = block.down.of_input().inputs;
  const bool whole = width == step && !layer.by_column;  // as one row
  const Strided up{s.up, step, 1}, gated[] = {{s.gate, step, 1}, up};
  layer.activation(block.gate.last.weight ? gated : &up, &up, whole ? 1 : rows, whole ? rows * width : width,
                   layer.parameters, nullptr, nullptr, threads);
}

constexpr int64_t most_experts = 256;

// Experts that act, from the scores of the routed ones, and their weights: 1 for a shared one, else the
// softmax over the chosen ones times their number. Overwrites the scores.
inline void choose(const Layer& layer, float* scores, int64_t* experts, float* weights) {
  const int64_t routed = layer.router.outputs;
  float peak = 0.0f, total = 0.0f;
  for (int64_t k = 0; k < layer.active; ++k) {
    experts[k] = k, weights[k] = 1.0f;
    if (k < layer.shared) continue;
    const int64_t best = std::max_element(scores, scores + routed) - scores;
    if (k == layer.shared) peak = scores[best];
    total += weights[k] = std::exp(scores[best] - peak);
    experts[k] = layer.shared + best;
    scores[best] = -INFINITY;
  }
  for (int64_t k = layer.shared; k < layer.active; ++k) weights[k] *= (layer.active - layer.shared) / total;
}

// added = the block of normal.
inline void feed_forward(const Layer& layer, const Stack& s, int threads) {
  const Factors& down = layer.blocks[0].down;
  const int64_t step = down.of_input().inputs, rank = down.last.inputs;
  if (!layer.router.weight) {
    enter(layer.blocks[0], s, s.normal, s.rows, 0, threads);
    activate(layer, s, s.rows, threads);
    if (down.first.weight) multiply<1>({{down.first, s.inner, rank}}, s.up, step, s.rows, threads);
    multiply<1>({{down.last, s.added, s.d_model}}, down.first.weight ? s.inner : s.up, rank, s.rows, threads);
    return;
  }
  int64_t experts[most_experts];
  float scores[most_experts], weights[most_experts];
  for (int64_t r = 0; r < s.rows; ++r) {
    const float* x = s.normal + r * s.d_model;
    float* y = s.added + r * s.d_model;
    multiply<1>({{layer.router, scores, 0}}, x, s.d_model, 1, 1);
    choose(layer, scores, experts, weights);
    for (int64_t k = 0; k < layer.active; ++k) enter(layer.blocks[experts[k]], s, x, 1, k, threads);
    activate(layer, s, layer.active, threads);
    for (int64_t k = 0; k < layer.active; ++k, ++*s.multiplied) {
      float* h = s.up + k * step;
      for (int64_t i = 0; i < step; ++i) h[i] *= weights[k];
      Matrix of_expert = layer.blocks[experts[k]].down.last;
      if (k) of_expert.bias = y;  // adds to what is there
      multiply<1>({{of_expert, y, s.d_model}}, h, step, 1, threads);
    }
  }
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

// Logits (rows, outputs of the head) from embeddings x (rows, d_model), which are overwritten.
extern "C" void decode_step(const stamm::Stack* stack, float* x, const int64_t* lengths,
                            int64_t column, float* logits, int threads) {
  using namespace stamm;
  const Stack& s = *stack;
  const float* added = nullptr;
  for (int64_t n = 0; n < s.count; ++n, added = s.added) {
    const Layer& layer = s.layers[n];
    const Attention& a = layer.attention;
    const int64_t E = a.width, heads = a.heads * E, kv = a.kv_heads * E, all = heads + 2 * kv;
    add_norm(x, added, layer.attention_norm, s.normal, s.rows, s.d_model, layer.attention_eps);
    multiply<3>({{layer.q, s.qkv, all}, {layer.k, s.qkv + heads, all}, {layer.v, s.qkv + heads + kv, all}},
                s.normal, s.d_model, s.rows, threads);
    attend_step(&a, s.qkv, lengths, column, s.attended, threads);
    multiply<1>({{layer.out, s.added, s.d_model}}, s.attended, heads, s.rows, threads);
    add_norm(x, s.added, layer.ffn_norm, s.normal, s.rows, s.d_model, layer.ffn_eps);
    feed_forward(layer, s, threads);
  }
  add_norm(x, added, s.norm, s.normal, s.rows, s.d_model, s.eps);
  multiply<1>({{s.head, logits, s.head.outputs}}, s.normal, s.d_model, s.rows, threads);
}
