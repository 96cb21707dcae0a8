// Weights in blocks of few bits as numbers of the product's type, for as long as the product takes:
// y[n][k], with `pitch` elements from one column to the next, or y[k][n].
//
// Options: those of block_weights.cl; COLUMNS_FIRST  y[n][k], filled up by zeros to `pitch` elements
//   TILED  weights lie in tiles

#include "block_weights.cl"
#ifdef TILED
#include "tiled_weights.cl"
#endif

__kernel void block_unpack(
    __global const uint4* restrict w, __global const SCALES* restrict scales,
    __global const OFFSET_TYPE* restrict offsets, __global REAL* restrict y,
    const int columns, const int depth, const int units, const int blocks, const int pitch
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)columns * units) return;
#ifdef COLUMNS_FIRST
  const int unit = at % units, n = at / units;
  const int end = pitch;
#else
  const int n = at % columns, unit = at / columns;
  const int end = depth;
#endif
  uint words[4];
#ifdef TILED
  const int pieces = (depth + PIECE - 1) / PIECE;
  if (unit / 2 >= pieces) return;  // blocks may be longer than the column
  __global const uchar* piece = piece_of((__global const uchar*)w, n / TILE, pieces, unit / 2);
  for (int t = 0; t < 4; t++) words[t] = word_of(piece, n % TILE, unit % 2, t);
  scales = scale_of(piece, n % TILE, unit % 2);
#ifndef ZERO
  offsets = OFFSET_OF(scales);
#endif
#else
  vstore4(w[(size_t)n * units + unit], 0, words);
#endif
  #pragma unroll
  for (int q = 0; q < QUADS; q++) {
#ifdef TILED
    const size_t block = 0;
#else
    const size_t block = (size_t)n * blocks + min(FIRST_BLOCK(unit) + q * PARTS / QUADS, blocks - 1);
#endif
    float4 v = quad_of(words, q) * GET_SCALE(scales, block);
#ifndef ZERO
    v -= GET_OFFSET(offsets, block);
#endif
    #pragma unroll
    for (int i = 0; i < 4; i++) {
      const int k = unit * ELEMENTS + q * 4 + i;
      if (k >= end) continue;
      const float number = k < depth ? ((const float*)&v)[i] : 0.0f;
#ifdef COLUMNS_FIRST
      PUT(y, (size_t)n * pitch + k, number);
#else
      PUT(y, (size_t)k * columns + n, number);
#endif
    }
  }
}
