// Products of few rows with weights in blocks of few bits: y[m][n] = sum_k a[m][k] * w[n][k], bound
// by reading the weights, once. LX items share the units of a column; each of them has COLUMNS
// columns, for which it reads the rows in local memory once. What an item multiplies next is on its
// way while it computes.
//
// Options: LX and LY (powers of two), ROWS, COLUMNS; those of block_weights.cl
//   TILE   units of a column for which the rows are in local memory at a time, a multiple of LX
//   NORM   rows are divided by the root of their mean square first, and multiplied by `factors`
//   GATED  of two neighbouring columns, the activation of the first is multiplied by the second
//   EXPERTS  there are so many matrices, of which each row has one; ROWS is 1

#include "block_weights.cl"
#include "block_columns.cl"
#ifdef GATED
#include "gated.cl"
#endif

// Of a unit in local memory, such that neighbours in a group read from different banks.
#define STRIDE (ELEMENTS + 4)
#define ITEMS (LX * LY)
#define STAGED (ROWS * TILE * STRIDE)
#define REDUCED (LY * COLUMNS * ROWS * LX)
#if STAGED > REDUCED
#define SHARED_FLOATS STAGED
#else
#define SHARED_FLOATS REDUCED
#endif

#ifdef NORM
// Writes the factor of each row to `norms`; `shared` has a value per item and row.
void norms_of(
    __local float* norms, __local float* shared, __global const REAL* a, const int m0,
    const int rows, const int depth, const int tid, const float epsilon
) {
  for (int r = 0; r < ROWS; r++) {
    float squares = 0.0f;
    for (int k = tid; k < depth && m0 + r < rows; k += ITEMS) {
      const float v = GET(a, (size_t)(m0 + r) * depth + k);
      squares = fma(v, v, squares);
    }
    shared[r * ITEMS + tid] = squares;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (tid < step)
      for (int r = 0; r < ROWS; r++) shared[r * ITEMS + tid] += shared[r * ITEMS + tid + step];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (tid == 0)
    for (int r = 0; r < ROWS; r++)
      norms[r] = 1.0f / sqrt(shared[r * ITEMS] / (float)depth + epsilon);
}
#endif

__kernel __attribute__((reqd_work_group_size(LX, LY, 1)))
void block_product(
    __global const REAL* restrict a, __global const uint4* restrict w,
    __global const SCALES* restrict scales, __global const OFFSET_TYPE* restrict offsets,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
    __global REAL* restrict y,
    const int rows, const int columns, const int depth, const int units, const int blocks,
    const int2 bias_step, const int has_bias, const int has_residual, const float alpha,
    const float beta
#ifdef NORM
    , __global const float* restrict factors, const float epsilon
#endif
#ifdef EXPERTS
    , __global const long* restrict chosen
    , const int sharing  // rows that read the same row of a, one behind another
#endif
) {
  __local float shared[SHARED_FLOATS] __attribute__((aligned(16)));
#ifndef ZERO
  __local float totals[ROWS][TILE * PARTS];
#endif
  const int x = get_local_id(0), tid = get_local_id(1) * LX + x;
  const int n0 = (get_group_id(0) * LY + get_local_id(1)) * COLUMNS;
  const int m0 = get_group_id(1) * ROWS;

#ifdef EXPERTS
  const size_t expert = clamp((int)chosen[m0], 0, EXPERTS - 1);
  w += expert * columns * units;
  scales += expert * columns * blocks;
  offsets += expert * columns * blocks;
  bias += has_bias ? expert * columns : 0;
  const int a0 = m0 / sharing;
#else
  const int a0 = m0;
#endif

  Weights next;
  if (x < units) fetch(&next, w, scales, offsets, n0, columns, units, blocks, x);
  float sums[COLUMNS][ROWS];
  #pragma unroll
  for (int c = 0; c < COLUMNS; c++)
    #pragma unroll
    for (int r = 0; r < ROWS; r++) sums[c][r] = 0.0f;

#ifdef NORM
  __local float norms[ROWS];
  norms_of(norms, shared, a, m0, rows, depth, tid, epsilon);
#endif
  for (int first = 0; first < units; first += TILE) {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = tid; i < ROWS * TILE * ELEMENTS; i += ITEMS) {
      const int r = i / (TILE * ELEMENTS), e = i % (TILE * ELEMENTS);
      const int k = first * ELEMENTS + e;
      const bool there = k < depth && m0 + r < rows;
      float v = there ? GET(a, (size_t)(a0 + r) * depth + k) : 0.0f;
#ifdef NORM
      if (there) v *= norms[r] * factors[k];
#endif
      shared[(r * TILE + e / ELEMENTS) * STRIDE + e % ELEMENTS] = v;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#ifndef ZERO
    for (int i = tid; i < ROWS * TILE * PARTS; i += ITEMS) {
      float total = 0.0f;
      for (int e = 0; e < ELEMENTS / PARTS; e++)
        total += shared[i / PARTS * STRIDE + i % PARTS * (ELEMENTS / PARTS) + e];
      totals[i / (TILE * PARTS)][i % (TILE * PARTS)] = total;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    const int end = min(first + TILE, units);
    for (int unit = first + x; unit < end; unit += LX) {
      const Weights now = next;
      if (unit + LX < units)
        fetch(&next, w, scales, offsets, n0, columns, units, blocks, unit + LX);
      #pragma unroll
      for (int p = 0; p < PARTS; p++) {
        float dots[COLUMNS][ROWS];
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++)
          #pragma unroll
          for (int r = 0; r < ROWS; r++) dots[c][r] = 0.0f;
        #pragma unroll
        for (int q = p * (QUADS / PARTS); q < (p + 1) * (QUADS / PARTS); q++) {
          float4 v[ROWS];
          #pragma unroll
          for (int r = 0; r < ROWS; r++)
            v[r] = *(__local const float4*)(shared + (r * TILE + unit - first) * STRIDE + q * 4);
          #pragma unroll
          for (int c = 0; c < COLUMNS; c++) {
            const float4 quad = quad_of(now.words[c], q);
            #pragma unroll
            for (int r = 0; r < ROWS; r++)
              dots[c][r] = fma(quad.w, v[r].w, fma(quad.z, v[r].z,
                           fma(quad.y, v[r].y, fma(quad.x, v[r].x, dots[c][r]))));
          }
        }
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++)
          #pragma unroll
          for (int r = 0; r < ROWS; r++) {
#ifdef UNSCALED
            sums[c][r] += dots[c][r];
#else
            sums[c][r] = fma(NUMBER_OF(SCALES)(now.scales[c][p]), dots[c][r], sums[c][r]);
#endif
#ifndef ZERO
            sums[c][r] -= NUMBER_OF(OFFSETS)(now.offsets[c][p]) * totals[r][(unit - first) * PARTS + p];
#endif
          }
      }
    }
  }

  barrier(CLK_LOCAL_MEM_FENCE);
  __local float* partial = shared + get_local_id(1) * (COLUMNS * ROWS * LX);
  #pragma unroll
  for (int i = 0; i < COLUMNS * ROWS; i++) partial[i * LX + x] = sums[i / ROWS][i % ROWS];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = LX / 2; step > 0; step /= 2) {
    if (x < step) {
      #pragma unroll
      for (int i = 0; i < COLUMNS * ROWS; i++) partial[i * LX + x] += partial[i * LX + x + step];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#ifdef GATED
  for (int i = x; i < COLUMNS / 2 * ROWS; i += LX) {
    const int c = i / ROWS * 2, n = n0 + c, m = m0 + i % ROWS;
    if (n >= columns || m >= rows) continue;
    float gate = partial[(c * ROWS + i % ROWS) * LX], v = partial[((c + 1) * ROWS + i % ROWS) * LX];
    if (has_bias) {
      gate += GET(bias, n);
      v += GET(bias, n + 1);
    }
    PUT(y, (size_t)m * (columns / 2) + n / 2, gated(gate, v, alpha, beta));
  }
#else
  for (int i = x; i < COLUMNS * ROWS; i += LX) {
    const int n = n0 + i / ROWS, m = m0 + i % ROWS;
    if (n >= columns || m >= rows) continue;
    float v = partial[i * LX];
    const size_t at = (size_t)m * columns + n;
    if (has_bias) v += GET(bias, m * bias_step.x + n * bias_step.y);
    if (has_residual) v += GET(residual, at);
    PUT(y, at, activate(v, ACTIVATION, alpha, beta));
  }
#endif
}
