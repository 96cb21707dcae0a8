// Products of few rows with weights in blocks of 4 or 8 bits, for processors: an item computes
// COLUMNS columns, sixteen bytes of each at a time in vector registers, and uses no local memory.
//
// Options: ROWS, COLUMNS; those of block_weights.cl
//   GATED  of two neighbouring columns, the activation of the first is multiplied by the second

#include "block_weights.cl"

#ifndef ZERO
#define ZERO_OR_NONE 0
#else
#define ZERO_OR_NONE ZERO
#endif
#if PARTS == 2
#define OVER_UNIT(get, p, first, last) (float16)((float8)(get(p, first)), (float8)(get(p, last)))
#else
#define OVER_UNIT(get, p, first, last) (float16)(get(p, first))
#endif

__kernel void block_lanes(
    __global const REAL* restrict a, __global const uchar* restrict w,
    __global const SCALES* restrict scales, __global const OFFSET_TYPE* restrict offsets,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
    __global REAL* restrict y,
    const int rows, const int columns, const int depth, const int units, const int blocks,
    const int2 bias_step, const int has_bias, const int has_residual, const float alpha,
    const float beta
) {
  const int n0 = get_global_id(0) * COLUMNS;
  float16 sums[COLUMNS][ROWS];
  for (int c = 0; c < COLUMNS; c++)
    for (int r = 0; r < ROWS; r++) sums[c][r] = (float16)(0.0f);
  for (int unit = 0; unit < units; unit++) {
    float16 even[ROWS], odd[ROWS];
    for (int r = 0; r < ROWS; r++) {
      float v[32];
      for (int e = 0; e < ELEMENTS; e++) {
        const int k = unit * ELEMENTS + e;
        v[e] = k < depth ? GET(a, (size_t)r * depth + k) : 0.0f;
      }
#if BITS == 4
      const float16 low = vload16(0, v), high = vload16(1, v);
      even[r] = (float16)(low.even, high.even);
      odd[r] = (float16)(low.odd, high.odd);
#else
      even[r] = vload16(0, v);
      odd[r] = (float16)(0.0f);
#endif
    }
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      const size_t n = min(n0 + c, columns - 1);
      const size_t first = n * blocks + FIRST_BLOCK(unit);
      const size_t last = n * blocks + min(FIRST_BLOCK(unit) + PARTS - 1, blocks - 1);
      const uchar16 bytes = vload16(n * units + unit, w);
#if BITS == 4
      const float16 low = convert_float16(bytes & (uchar16)(15)) - (float)ZERO_OR_NONE;
      const float16 high = convert_float16(bytes >> (uchar16)(4)) - (float)ZERO_OR_NONE;
#else
      const float16 low = convert_float16(bytes) - (float)ZERO_OR_NONE;
#endif
      const float16 scale = OVER_UNIT(GET_SCALE, scales, first, last);
#ifndef ZERO
      const float16 offset = OVER_UNIT(GET_OFFSET, offsets, first, last);
#endif
      #pragma unroll
      for (int r = 0; r < ROWS; r++) {
#if BITS == 4
        sums[c][r] += scale * (low * even[r] + high * odd[r]);
#else
        sums[c][r] += scale * (low * even[r]);
#endif
#ifndef ZERO
        sums[c][r] -= offset * (even[r] + odd[r]);
#endif
      }
    }
  }
  for (int r = 0; r < ROWS; r++) {
    float total[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) {
      const float8 eight = sums[c][r].lo + sums[c][r].hi;
      const float4 four = eight.lo + eight.hi;
      total[c] = four.x + four.y + four.z + four.w;
      if (has_bias && n0 + c < columns) total[c] += GET(bias, r * bias_step.x + (n0 + c) * bias_step.y);
    }
    for (int c = 0; c < COLUMNS && n0 + c < columns; c++) {
#ifdef GATED
      if (c % 2 == 0)
        PUT(y, (size_t)r * (columns / 2) + (n0 + c) / 2,
            activate(total[c], ACTIVATION, alpha, beta) * total[c + 1]);
#else
      const size_t at = (size_t)r * columns + n0 + c;
      const float v = total[c] + (has_residual ? GET(residual, at) : 0.0f);
      PUT(y, at, activate(v, ACTIVATION, alpha, beta));
#endif
    }
  }
}
