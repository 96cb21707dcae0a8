// Weights in blocks of few bits as numbers of the product's type, for as long as the product takes:
// y[n][k] or y[k][n].
//
// Options: those of block_weights.cl; COLUMNS_FIRST  y[n][k], of a depth that is a multiple of 4
//   TILED  weights lie in tiles
//
// Work-items, so that neighbours write neighbouring addresses: COLUMNS_FIRST  one for each of the four
// words of a unit in the first dimension, columns in the second; otherwise one for each unit.

#include "block_weights.cl"
#ifdef TILED
#include "tiled_weights.cl"
#endif

#ifdef COLUMNS_FIRST
#define WORDS 1
#else
#define WORDS 4
#endif

// WORDS words of a unit of column n, from word `first`.
void unpack_words(
    __global const uint4* restrict w, __global const SCALES* restrict scales,
    __global const OFFSET_TYPE* restrict offsets, __global REAL* restrict y,
    const int columns, const int depth, const int units, const int blocks,
    const int n, const int unit, const int first
) {
  uint words[WORDS];
#ifdef TILED
  const int pieces = (depth + PIECE - 1) / PIECE;
  if (unit / 2 >= pieces) return;  // blocks may be longer than the column
  __global const uchar* piece = piece_of((__global const uchar*)w, n / TILE, pieces, unit / 2);
  for (int t = 0; t < WORDS; t++) words[t] = word_of(piece, n % TILE, unit % 2, first + t);
  scales = scale_of(piece, n % TILE, unit % 2);
#ifndef ZERO
  offsets = OFFSET_OF(scales);
#endif
#else
  __global const uint* column = (__global const uint*)(w + (size_t)n * units);
  for (int t = 0; t < WORDS; t++) words[t] = column[unit * 4 + first + t];
#endif
  #pragma unroll
  for (int i = 0; i < QUADS / 4 * WORDS; i++) {
    const int quad = QUADS / 4 * first + i, k = unit * ELEMENTS + quad * 4;
#ifdef TILED
    const size_t block = 0;
#else
    const int within = FIRST_BLOCK(unit) + quad * PARTS / QUADS;
    const size_t block = (size_t)n * blocks + min(within, blocks - 1);
#endif
    float4 v = quad_of(words, i) * GET_SCALE(scales, block);
#ifndef ZERO
    v -= GET_OFFSET(offsets, block);
#endif
#ifdef COLUMNS_FIRST
    if (k < depth) PUT4(y, (size_t)n * depth + k, v);
#else
    for (int j = 0; j < 4 && k + j < depth; j++) {
      PUT(y, (size_t)(k + j) * columns + n, ((const float*)&v)[j]);
    }
#endif
  }
}

__kernel void block_unpack(
    __global const uint4* restrict w, __global const SCALES* restrict scales,
    __global const OFFSET_TYPE* restrict offsets, __global REAL* restrict y,
    const int columns, const int depth, const int units, const int blocks
) {
#ifdef COLUMNS_FIRST
  const int word = get_global_id(0);
  if (word >= units * 4) return;
  for (int n = get_global_id(1); n < columns; n += get_global_size(1)) {
    unpack_words(w, scales, offsets, y, columns, depth, units, blocks, n, word / 4, word % 4);
  }
#else
  const size_t at = get_global_id(0);
  if (at >= (size_t)columns * units) return;
  const int n = at % columns, unit = at / columns;
  unpack_words(w, scales, offsets, y, columns, depth, units, blocks, n, unit, 0);
#endif
}
