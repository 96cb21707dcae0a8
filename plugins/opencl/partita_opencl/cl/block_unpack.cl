// Weights in blocks of few bits as numbers of the product's type, for as long as the product takes:
// y[n][k], with `pitch` elements from one column to the next, or y[k][n].
//
// Options: those of block_weights.cl; COLUMNS_FIRST  y[n][k], filled up by zeros to `pitch` elements

#include "block_weights.cl"

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
  vstore4(w[(size_t)n * units + unit], 0, words);
  #pragma unroll
  for (int q = 0; q < QUADS; q++) {
    const size_t block = (size_t)n * blocks + min(FIRST_BLOCK(unit) + q * PARTS / QUADS, blocks - 1);
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
