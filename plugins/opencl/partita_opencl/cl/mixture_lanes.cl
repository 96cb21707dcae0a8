// Products of rows with the weights of their experts, for processors: an item computes COLUMNS columns
// of at most HIGH rows of one expert in registers, and uses no local memory.
//
// Options: COLUMNS (even), HIGH, EXPERTS; those of block_weights.cl and gated.cl
//   SORTED  rows of an expert lie in tiles; otherwise each row is by itself, and HIGH is 1
//   GATED   of two neighbouring columns, the activation of the first is multiplied by the second

#include "block_weights.cl"
#include "mixture_results.cl"

__kernel void mixture_lanes(
    __global const REAL* restrict a, __global const uint4* restrict w,
    __global const SCALES* restrict scales, __global const OFFSET_TYPE* restrict offsets,
    __global const REAL* restrict bias, __global REAL* restrict y,
#ifdef SORTED
    __global const int4* restrict tiles, __global const int* restrict order,
#else
    __global const long* restrict chosen,
#endif
    const int columns, const int depth, const int units, const int blocks,
    const int sharing,  // rows that read the same row of a, one behind another
    const int has_bias, const float alpha, const float beta
) {
  const int n0 = get_global_id(0) * COLUMNS;
  int rows[HIGH];
#ifdef SORTED
  const int4 tile = tiles[get_global_id(1)];
  const size_t expert = tile.x;
  const int count = tile.z;
  for (int r = 0; r < HIGH; r++) rows[r] = r < count ? order[tile.y + r] : 0;
#else
  const size_t expert = clamp((int)chosen[get_global_id(1)], 0, EXPERTS - 1);
  const int count = 1;
  rows[0] = get_global_id(1);
#endif
  if (!count) return;

  float4 sums[COLUMNS][HIGH];
  for (int c = 0; c < COLUMNS; c++)
    for (int r = 0; r < HIGH; r++) sums[c][r] = (float4)(0.0f);
  for (int unit = 0; unit < units; unit++) {
    float4 v[HIGH][QUADS];
    for (int r = 0; r < HIGH; r++)
      for (int q = 0; q < QUADS; q++) {
        float four[4];
        for (int i = 0; i < 4; i++) {
          const int k = unit * ELEMENTS + q * 4 + i;
          four[i] = k < depth ? GET(a, (size_t)(rows[r] / sharing) * depth + k) : 0.0f;
        }
        v[r][q] = vload4(0, four);
      }
    for (int c = 0; c < COLUMNS; c++) {
      const size_t n = expert * columns + min(n0 + c, columns - 1);
      uint words[4];
      vstore4(w[n * units + unit], 0, words);
      for (int q = 0; q < QUADS; q++) {
        float4 quad = quad_of(words, q);
#ifndef UNSCALED
        const size_t block =
            n * blocks + min(FIRST_BLOCK(unit) + q * PARTS / QUADS, blocks - 1);
        quad *= GET_SCALE(scales, block);
#ifndef ZERO
        quad -= GET_OFFSET(offsets, block);
#endif
#endif
        for (int r = 0; r < HIGH; r++) sums[c][r] += quad * v[r][q];
      }
    }
  }
  bias += has_bias ? expert * columns : 0;
  for (int r = 0; r < count; r++)
    for (int c = 0; c < COLUMNS; c += 2) {
      const float4 low = sums[c][r], high = sums[c + 1][r];
      const float2 pair =
          (float2)((low.x + low.y) + (low.z + low.w), (high.x + high.y) + (high.z + high.w));
      put_pair(y, bias, rows[r], n0 + c, columns, pair, has_bias, alpha, beta);
    }
}
