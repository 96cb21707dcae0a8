// Matrix products and convolutions for GPUs: a work-group computes a BM x BN tile of
//   y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + bias + residual)
// through two local-memory buffers; each item keeps TM x TN sums in registers.
//
// Options: BM BN BK TM TN  tile sizes; (BM/TM)*(BN/TN) items, a multiple of BN
//   A_PACKED, A_VECTORS, B_VECTORS, WHOLE, IM2COL, CHANNELS  see product_loads.cl; a vector has
//              four elements, and with B_VECTORS y is written by vectors, too
//   Sums of which a group makes a part only (the k range is cut in `splits`):
//   SPLIT      y[split][z][m][n] gets raw sums; product_sum.cl adds them up
//   HAND_OVER  raw sums go to `partial`; the last group to arrive at a tile adds them up,
//              in the order of the splits, so that results repeat bit for bit

#define ITEMS ((BM / TM) * (BN / TN))
#define A_ROW (BM + 4)
#define B_ROW BN
#define A_WIDTH (BM / (TM / 4))
#define B_WIDTH (BN / (TN / 4))
#define QUADS (TM * TN / 4)

#define VECTOR 4
#define SCALAR_TYPE float
#define VECTOR_TYPE float4
#define GET_SCALAR GET
#define GET_VECTOR GET4
#define NO_SCALAR 0.0f
#define NO_VECTOR (float4)(0.0f)
#ifndef A_PACKED  // transposed, so that an item's rows are neighbours
#ifdef A_VECTORS
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      __local float* to = a_tile[s] + e % (BK / 4) * 4 * A_ROW + e / (BK / 4); \
      to[0] = a_next[i].x; to[A_ROW] = a_next[i].y; \
      to[2 * A_ROW] = a_next[i].z; to[3 * A_ROW] = a_next[i].w; }
#else
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e % BK * A_ROW + e / BK] = a_next[i]; }
#endif
#endif
#include "product_loads.cl"

#define ELEMENT REAL
#ifdef SPLIT
#define RESULT float
#else
#define RESULT REAL
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product_tile(
#include "product_arguments.cl"
) {
  __local float a_tile[2][BK * A_ROW] __attribute__((aligned(16)));
  __local float b_tile[2][BK * BN] __attribute__((aligned(16)));
#ifdef HAND_OVER
  __local int is_last;
#endif

  const int tid = get_local_id(0);
#include "product_place.cl"

  float row_bias[TM];
  const int tx = tid % (BN / TN), ty = tid / (BN / TN);
  bias += has_bias ? (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns) : 0;
  #pragma unroll
  for (int i = 0; i < TM; i++) {
    const int m = m0 + (i / 4) * A_WIDTH + ty * 4 + i % 4;
    row_bias[i] = has_bias && bias_step.y == 0 && m < rows ? GET(bias, m * bias_step.x) : 0.0f;
  }

  A_TYPE a_next[A_LOADS];
  B_TYPE b_next[B_LOADS];
  float sums[TM][TN];
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) sums[i][j] = 0.0f;

  LOAD(k_begin)
  STORE(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  int s = 0;
  for (int k0 = k_begin; k0 < k_end; k0 += BK, s ^= 1) {
    const bool more = k0 + BK < k_end;
    if (more) LOAD(k0 + BK)
    #pragma unroll
    for (int k = 0; k < BK; k++) {
      float av[TM], bv[TN];
      #pragma unroll
      for (int i = 0; i < TM / 4; i++) {
        const float4 v = *(__local const float4*)(a_tile[s] + k * A_ROW + i * A_WIDTH + ty * 4);
        av[i * 4] = v.x; av[i * 4 + 1] = v.y; av[i * 4 + 2] = v.z; av[i * 4 + 3] = v.w;
      }
      #pragma unroll
      for (int j = 0; j < TN / 4; j++) {
        const float4 v = *(__local const float4*)(b_tile[s] + k * BN + j * B_WIDTH + tx * 4);
        bv[j * 4] = v.x; bv[j * 4 + 1] = v.y; bv[j * 4 + 2] = v.z; bv[j * 4 + 3] = v.w;
      }
      #pragma unroll
      for (int i = 0; i < TM; i++)
        #pragma unroll
        for (int j = 0; j < TN; j++) sums[i][j] = fma(av[i], bv[j], sums[i][j]);
    }
    // The other buffer was last read before the previous barrier, so it may be written now.
    if (more) STORE(s ^ 1)
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#ifdef HAND_OVER
  __global float4* slots = partial + tile * splits * (QUADS * ITEMS) + tid;
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN / 4; j++)
      slots[((size_t)split * QUADS + i * (TN / 4) + j) * ITEMS] = (float4)(
          sums[i][j * 4], sums[i][j * 4 + 1], sums[i][j * 4 + 2], sums[i][j * 4 + 3]);
#include "hand_over.cl"
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) sums[i][j] = 0.0f;
  for (int part = 0; part < splits; part++)
    #pragma unroll
    for (int i = 0; i < TM; i++)
      #pragma unroll
      for (int j = 0; j < TN / 4; j++) {
        const float4 v = slots[((size_t)part * QUADS + i * (TN / 4) + j) * ITEMS];
        sums[i][j * 4] += v.x; sums[i][j * 4 + 1] += v.y;
        sums[i][j * 4 + 2] += v.z; sums[i][j * 4 + 3] += v.w;
      }
#endif

#ifdef SPLIT
  y += (size_t)split * batches * rows * columns;
#endif
  y += (size_t)z * rows * columns;
  residual += has_residual ? (size_t)z * rows * columns : 0;
  const bool column_bias = has_bias && bias_step.y != 0;
  #pragma unroll
  for (int i = 0; i < TM; i++) {
    const int m = m0 + (i / 4) * A_WIDTH + ty * 4 + i % 4;
    if (m >= rows) continue;
    #pragma unroll
    for (int j = 0; j < TN / 4; j++) {
      const int n = n0 + j * B_WIDTH + tx * 4;
      const size_t at = (size_t)m * columns + n;
      float v[4] = { sums[i][j * 4], sums[i][j * 4 + 1], sums[i][j * 4 + 2], sums[i][j * 4 + 3] };
#ifdef B_VECTORS
      if (n >= columns) continue;
#ifndef SPLIT
      const float4 more = has_residual ? GET4(residual, at) : (float4)(0.0f);
      v[0] += row_bias[i] + more.x; v[1] += row_bias[i] + more.y;
      v[2] += row_bias[i] + more.z; v[3] += row_bias[i] + more.w;
      #pragma unroll
      for (int q = 0; q < 4; q++) {
        if (column_bias) v[q] += GET(bias, m * bias_step.x + (n + q) * bias_step.y);
        v[q] = activate(v[q], ACTIVATION, alpha, beta);
      }
      PUT4(y, at, ((float4)(v[0], v[1], v[2], v[3])));
#else
      *(__global float4*)(y + at) = (float4)(v[0], v[1], v[2], v[3]);
#endif
#else
      #pragma unroll
      for (int q = 0; q < 4; q++) {
        if (n + q >= columns) continue;
#ifndef SPLIT
        v[q] += row_bias[i];
        if (column_bias) v[q] += GET(bias, m * bias_step.x + (n + q) * bias_step.y);
        if (has_residual) v[q] += GET(residual, at + q);
        PUT(y, at + q, activate(v[q], ACTIVATION, alpha, beta));
#else
        y[at + q] = v[q];
#endif
      }
#endif
    }
  }
}
