// Products of rows with the weights of their experts, for GPUs: a work-group computes a tile of at most
// HIGH rows of one expert and WIDE columns, for which weights are unpacked into local memory, DEEP
// terms at a time. The next terms are loaded while items compute.
//
// Options: HIGH, WIDE, DEEP; those of block_weights.cl and mixture_results.cl
//   MATRIX    matrix units multiply halves; without the option NVIDIA, items compute the same sums from
//             the same tiles by ordinary arithmetic
//   A_QUADS   the depth is a multiple of four

#include "block_weights.cl"
#include "mixture_results.cl"
#include "warp_units.cl"

#define ITEMS 128
#define STEP_UNITS (DEEP / ELEMENTS)  // of a column
#define W_LOADS ((WIDE * STEP_UNITS + ITEMS - 1) / ITEMS)
#ifdef A_QUADS
#define A_STEP 4
#else
#define A_STEP 1
#endif
#define A_LOADS (HIGH * DEEP / A_STEP / ITEMS)

#ifdef MATRIX
// Rows of local memory start 16 bytes after a multiple of 64: reading eight of them hits all banks.
#define ROW (DEEP + 8)
#define A_SIZE (HIGH * ROW)
#define W_SIZE (WIDE * ROW)
typedef ushort Local;
#define HALVES(tile) ((__local half*)(tile))
// Two warps along rows, two along columns.
#define A_BLOCKS (HIGH / 2 / 16)
#define W_BLOCKS (WIDE / 2 / 8)
#else
#define A_ROW (HIGH + 4)
#define W_ROW (WIDE + 4)
#define A_SIZE (DEEP * A_ROW)
#define W_SIZE (DEEP * W_ROW)
typedef float Local;
// Four rows of an item, and as many columns as there are sums.
#define TM 4
#define TN (HIGH * WIDE / ITEMS / TM)
#define COLUMN_ITEMS (WIDE / TN)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void mixture_tiles(
    __global const REAL* restrict a, __global const uint4* restrict w,
    __global const SCALES* restrict scales, __global const OFFSET_TYPE* restrict offsets,
    __global const REAL* restrict bias, __global REAL* restrict y,
    __global const int4* restrict tiles, __global const int* restrict order,
    const int columns, const int depth, const int units, const int blocks,
    const int sharing,  // rows that read the same row of a, one behind another
    const int has_bias, const float alpha, const float beta
) {
  __local Local a_tile[A_SIZE] __attribute__((aligned(16)));
  __local Local w_tile[W_SIZE] __attribute__((aligned(16)));
  __local int rows[HIGH], reads[HIGH];
  const int tid = get_local_id(0);
  const int column_tiles = (columns + WIDE - 1) / WIDE;
  const int4 tile = tiles[get_group_id(0) / column_tiles];
  const int n0 = (int)(get_group_id(0) % column_tiles) * WIDE;
  const size_t expert = tile.x;
  const int end = tile.z ? depth : 0;  // all items go on to the barriers
  for (int r = tid; r < HIGH; r += ITEMS) {
    rows[r] = r < tile.z ? order[tile.y + r] : -1;
    reads[r] = r < tile.z ? rows[r] / sharing : -1;
  }
  barrier(CLK_LOCAL_MEM_FENCE);

  w += expert * columns * units;
  scales += expert * columns * blocks;
#ifndef ZERO
  offsets += expert * columns * blocks;
#endif

#ifdef A_QUADS
  float4 a_next[A_LOADS];
#else
  float a_next[A_LOADS];
#endif
  uint w_next[W_LOADS][4];
#ifndef UNSCALED
  float scale_next[W_LOADS][PARTS];
#ifndef ZERO
  float offset_next[W_LOADS][PARTS];
#endif
#endif

#define LOAD_A(k0) \
  _Pragma("unroll") \
  for (int i = 0; i < A_LOADS; i++) { \
    const int e = tid + i * ITEMS, row = reads[e / (DEEP / A_STEP)]; \
    const int k = (k0) + e % (DEEP / A_STEP) * A_STEP; \
    a_next[i] = 0.0f; \
    if (row >= 0 && k < depth) a_next[i] = GET_A((size_t)row * depth + k); \
  }
#ifdef A_QUADS
#define GET_A(at) GET4(a, at)
#else
#define GET_A(at) GET(a, at)
#endif
#ifdef UNSCALED
#define LOAD_SCALES(i, n, unit)
#else
#define BLOCK_OF(n, unit, p) ((n) * blocks + min(FIRST_BLOCK(unit) + (p), blocks - 1))
#ifdef ZERO
#define LOAD_OFFSET(i, p, at)
#else
#define LOAD_OFFSET(i, p, at) offset_next[i][p] = GET_OFFSET(offsets, at);
#endif
#define LOAD_SCALES(i, n, unit) \
  _Pragma("unroll") \
  for (int p = 0; p < PARTS; p++) { \
    const size_t at = BLOCK_OF(n, unit, p); \
    scale_next[i][p] = GET_SCALE(scales, at); \
    LOAD_OFFSET(i, p, at) \
  }
#endif
  // Elements beyond the last unit are arbitrary: they are multiplied by zeros of a.
#define LOAD_W(k0) \
  _Pragma("unroll") \
  for (int i = 0; i < W_LOADS; i++) { \
    const int e = min(tid + i * ITEMS, WIDE * STEP_UNITS - 1); \
    const size_t n = min(n0 + e / STEP_UNITS, columns - 1); \
    const int unit = min((k0) / ELEMENTS + e % STEP_UNITS, units - 1); \
    vstore4(w[n * units + unit], 0, w_next[i]); \
    LOAD_SCALES(i, n, unit) \
  }

  LOAD_A(0)
  LOAD_W(0)
#ifdef MATRIX
  const int lane = tid % 32, warp = tid / 32;
  const int warp_m = warp % 2 * (HIGH / 2), warp_n = warp / 2 * (WIDE / 2);
  float sums[A_BLOCKS][W_BLOCKS][4];
  #pragma unroll
  for (int i = 0; i < A_BLOCKS * W_BLOCKS * 4; i++)
    sums[i / (W_BLOCKS * 4)][i / 4 % W_BLOCKS][i % 4] = 0.0f;
#else
  const int tx = tid % COLUMN_ITEMS, ty = tid / COLUMN_ITEMS;
  float sums[TM][TN];
  #pragma unroll
  for (int i = 0; i < TM * TN; i++) sums[i / TN][i % TN] = 0.0f;
#endif

  for (int k0 = 0; k0 < end; k0 += DEEP) {
    #pragma unroll
    for (int i = 0; i < A_LOADS; i++) {
      const int e = tid + i * ITEMS, m = e / (DEEP / A_STEP), k = e % (DEEP / A_STEP) * A_STEP;
#if defined(MATRIX) && defined(A_QUADS)
      PUT_LOCAL2(HALVES(a_tile), m * ROW + k, a_next[i].lo);
      PUT_LOCAL2(HALVES(a_tile), m * ROW + k + 2, a_next[i].hi);
#elif defined(MATRIX)
      PUT_HALF(HALVES(a_tile), m * ROW + k, a_next[i]);
#elif defined(A_QUADS)
      a_tile[k * A_ROW + m] = a_next[i].x;
      a_tile[(k + 1) * A_ROW + m] = a_next[i].y;
      a_tile[(k + 2) * A_ROW + m] = a_next[i].z;
      a_tile[(k + 3) * A_ROW + m] = a_next[i].w;
#else
      a_tile[k * A_ROW + m] = a_next[i];
#endif
    }
    #pragma unroll
    for (int i = 0; i < W_LOADS; i++) {
      const int e = tid + i * ITEMS, n = e / STEP_UNITS, k = e % STEP_UNITS * ELEMENTS;
      if (e >= WIDE * STEP_UNITS) continue;
      #pragma unroll
      for (int q = 0; q < QUADS; q++) {
        float4 v = quad_of(w_next[i], q);
#ifndef UNSCALED
        v *= scale_next[i][q * PARTS / QUADS];
#ifndef ZERO
        v -= offset_next[i][q * PARTS / QUADS];
#endif
#endif
#ifdef MATRIX
        PUT_LOCAL2(HALVES(w_tile), n * ROW + k + q * 4, v.lo);
        PUT_LOCAL2(HALVES(w_tile), n * ROW + k + q * 4 + 2, v.hi);
#else
        w_tile[(k + q * 4) * W_ROW + n] = v.x;
        w_tile[(k + q * 4 + 1) * W_ROW + n] = v.y;
        w_tile[(k + q * 4 + 2) * W_ROW + n] = v.z;
        w_tile[(k + q * 4 + 3) * W_ROW + n] = v.w;
#endif
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (k0 + DEEP < depth) {
      LOAD_A(k0 + DEEP)
      LOAD_W(k0 + DEEP)
    }
#if defined(MATRIX) && defined(NVIDIA)
    #pragma unroll
    for (int k = 0; k < DEEP; k += 16) {
      uint av[A_BLOCKS][4], wv[W_BLOCKS / 2][4];
      #pragma unroll
      for (int i = 0; i < A_BLOCKS; i++)
        // Four matrices of 8 x 8: rows 0 and 8 of the first eight k, then of the next eight.
        LOAD_FRAGMENTS(av[i][0], av[i][1], av[i][2], av[i][3],
            a_tile + (warp_m + i * 16 + lane % 16) * ROW + k + lane / 16 * 8);
      #pragma unroll
      for (int j = 0; j < W_BLOCKS / 2; j++)
        // Columns 0 of the first and the next eight k, then columns 8 of both.
        LOAD_FRAGMENTS(wv[j][0], wv[j][1], wv[j][2], wv[j][3],
            w_tile + (warp_n + j * 16 + lane / 16 * 8 + lane % 8) * ROW + k + lane / 8 % 2 * 8);
      #pragma unroll
      for (int i = 0; i < A_BLOCKS; i++)
        #pragma unroll
        for (int j = 0; j < W_BLOCKS; j++)
          MULTIPLY(sums[i][j], av[i], wv[j / 2] + j % 2 * 2);
    }
#elif defined(MATRIX)
    for (int i = 0; i < A_BLOCKS; i++)
      for (int j = 0; j < W_BLOCKS; j++)
        for (int q = 0; q < 4; q++) {
          const int m = warp_m + i * 16 + q / 2 * 8 + lane / 4;
          const int n = warp_n + j * 8 + lane % 4 * 2 + q % 2;
          for (int k = 0; k < DEEP; k++)
            sums[i][j][q] += GET_LOCAL(HALVES(a_tile), m * ROW + k) *
                             GET_LOCAL(HALVES(w_tile), n * ROW + k);
        }
#else
    #pragma unroll 4
    for (int k = 0; k < DEEP; k++) {
      const float4 four = *(__local const float4*)(a_tile + k * A_ROW + ty * TM);
      const float av[TM] = {four.x, four.y, four.z, four.w};
      #pragma unroll
      for (int j = 0; j < TN / 4; j++) {
        const float4 wv =
            *(__local const float4*)(w_tile + k * W_ROW + (j * COLUMN_ITEMS + tx) * 4);
        #pragma unroll
        for (int i = 0; i < TM; i++) {
          sums[i][j * 4] = fma(av[i], wv.x, sums[i][j * 4]);
          sums[i][j * 4 + 1] = fma(av[i], wv.y, sums[i][j * 4 + 1]);
          sums[i][j * 4 + 2] = fma(av[i], wv.z, sums[i][j * 4 + 2]);
          sums[i][j * 4 + 3] = fma(av[i], wv.w, sums[i][j * 4 + 3]);
        }
      }
    }
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  bias += has_bias ? expert * columns : 0;
#ifdef MATRIX
  // An item's sums of a block: rows lane / 4 and 8 below, columns lane % 4 * 2 and the next.
  #pragma unroll
  for (int i = 0; i < A_BLOCKS; i++)
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = rows[warp_m + i * 16 + h * 8 + lane / 4];
      if (row < 0) continue;
      #pragma unroll
      for (int j = 0; j < W_BLOCKS; j++)
        put_pair(y, bias, row, n0 + warp_n + j * 8 + lane % 4 * 2, columns,
                 (float2)(sums[i][j][h * 2], sums[i][j][h * 2 + 1]), has_bias, alpha, beta);
    }
#else
  #pragma unroll
  for (int i = 0; i < TM; i++) {
    const int row = rows[ty * TM + i];
    if (row < 0) continue;
    #pragma unroll
    for (int j = 0; j < TN; j += 2)
      put_pair(y, bias, row, n0 + (j / 4 * COLUMN_ITEMS + tx) * 4 + j % 4, columns,
               (float2)(sums[i][j], sums[i][j + 1]), has_bias, alpha, beta);
  }
#endif
}
