// Matrix products and convolutions for GPUs: a work-group computes a BM x BN tile of
//   y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + bias + residual)
// through two local-memory buffers; each item keeps TM x TN sums in registers.
//
// Options: BM BN BK TM TN  tile sizes; (BM/TM)*(BN/TN) items, a multiple of BN
//   A_PACKED   a is stored [k][m] (weights, packed once), else [m][k]
//   IM2COL     b[k][n] is pixel n of the window tap k of an image (n = output pixel)
//   SPLIT      the k range is cut in `splits`; raw sums go to y[split][z][m][n]

#define ITEMS ((BM / TM) * (BN / TN))
#define A_LOADS (BM * BK / ITEMS)
#define B_LOADS (BN * BK / ITEMS)
#define A_ROW (BM + 4)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product_tile(
    __global const float* restrict a, __global const float* restrict b,
    __global const float* restrict bias, __global const float* restrict residual,
    __global float* restrict y,
    const int rows, const int columns, const int depth, const int batches,
    // Matrix (z / div) % mod of a and b belongs to batch z; bias has one vector per (z % mod).
    const int4 batch_map, const int bias_mod,
    // bias index = m * x + n * y; x = y = 0 and has_bias = 0 without one.
    const int2 bias_step, const int has_bias, const int has_residual,
    const float alpha, const float beta, const int k_per_split
#ifdef IM2COL
    , __global const int4* restrict taps,  // per k: offset in the image, then its z, y, x
    const int4 in_size,                    // x, y, z of the image, w: channels
    const int4 out_size,                   // x, y, z of the output
    const int4 stride, const int4 pad
#endif
) {
  __local float a_tile[2][BK * A_ROW] __attribute__((aligned(16)));
  __local float b_tile[2][BK * BN] __attribute__((aligned(16)));

  const int tid = get_local_id(0);
  const int column_tiles = (columns + BN - 1) / BN;
  const int row_tiles = (rows + BM - 1) / BM;
  size_t group = get_group_id(0);
  const int n0 = (int)(group % column_tiles) * BN;
  group /= column_tiles;
  const int m0 = (int)(group % row_tiles) * BM;
  group /= row_tiles;
  const int z = (int)(group % batches);
  const int split = (int)(group / batches);

  const int k_begin = split * k_per_split;
  const int k_end = min(depth, k_begin + k_per_split);

  a += (size_t)((z / batch_map.x) % batch_map.y) * rows * depth;
#ifdef IM2COL
  b += (size_t)z * in_size.w * in_size.z * in_size.y * in_size.x;
#else
  b += (size_t)((z / batch_map.z) % batch_map.w) * depth * columns;
#endif

  // The column of b that this item loads stays the same for the whole k loop.
  const int bn = n0 + tid % BN;
  const int bk = tid / BN;
#ifdef IM2COL
  const int ox = bn % out_size.x;
  const int oy = (bn / out_size.x) % out_size.y;
  const int oz = bn / (out_size.x * out_size.y);
  const int ix = ox * stride.x - pad.x;
  const int iy = oy * stride.y - pad.y;
  const int iz = oz * stride.z - pad.z;
  const int origin = (iz * in_size.y + iy) * in_size.x + ix;
#endif

  float a_next[A_LOADS], b_next[B_LOADS];
  float sums[TM][TN];
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) sums[i][j] = 0.0f;

#ifdef A_PACKED
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % BM, k = (k0) + e / BM; \
      a_next[i] = (m < rows && k < k_end) ? a[(size_t)k * rows + m] : 0.0f; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; a_tile[s][(e / BM) * A_ROW + e % BM] = a_next[i]; }
#else
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / BK, k = (k0) + e % BK; \
      a_next[i] = (m < rows && k < k_end) ? a[(size_t)m * depth + k] : 0.0f; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; a_tile[s][(e % BK) * A_ROW + e / BK] = a_next[i]; }
#endif
#ifdef IM2COL
  #define LOAD_B(k0) { const int k = (k0) + bk + i * (ITEMS / BN); float v = 0.0f; \
      if (k < k_end && bn < columns) { const int4 t = taps[k]; \
        if ((uint)(ix + t.w) < (uint)in_size.x && (uint)(iy + t.z) < (uint)in_size.y && \
            (uint)(iz + t.y) < (uint)in_size.z) v = b[origin + t.x]; } \
      b_next[i] = v; }
#else
  #define LOAD_B(k0) { const int k = (k0) + bk + i * (ITEMS / BN); \
      b_next[i] = (k < k_end && bn < columns) ? b[(size_t)k * columns + bn] : 0.0f; }
#endif
  #define STORE_B(s) { b_tile[s][(bk + i * (ITEMS / BN)) * BN + tid % BN] = b_next[i]; }
  #define LOAD(k0) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) LOAD_A(k0) \
                     _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) LOAD_B(k0) }
  #define STORE(s) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) STORE_A(s) \
                     _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) STORE_B(s) }

  const int tx = tid % (BN / TN), ty = tid / (BN / TN);
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
        const float4 v =
            *(__local const float4*)(a_tile[s] + k * A_ROW + i * (BM / (TM / 4)) + ty * 4);
        av[i * 4] = v.x; av[i * 4 + 1] = v.y; av[i * 4 + 2] = v.z; av[i * 4 + 3] = v.w;
      }
      #pragma unroll
      for (int j = 0; j < TN / 4; j++) {
        const float4 v =
            *(__local const float4*)(b_tile[s] + k * BN + j * (BN / (TN / 4)) + tx * 4);
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

#ifdef SPLIT
  y += (size_t)split * batches * rows * columns;
#endif
  y += (size_t)z * rows * columns;
  residual += has_residual ? (size_t)z * rows * columns : 0;
  bias += has_bias ? (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns) : 0;
  #pragma unroll
  for (int i = 0; i < TM; i++) {
    const int m = m0 + (i / 4) * (BM / (TM / 4)) + ty * 4 + i % 4;
    #pragma unroll
    for (int j = 0; j < TN; j++) {
      const int n = n0 + (j / 4) * (BN / (TN / 4)) + tx * 4 + j % 4;
      if (m < rows && n < columns) {
        const size_t at = (size_t)m * columns + n;
        float v = sums[i][j];
#ifndef SPLIT
        if (has_bias) v += bias[m * bias_step.x + n * bias_step.y];
        if (has_residual) v += residual[at];
        v = activate(v, ACTIVATION, alpha, beta);
#endif
        y[at] = v;
      }
    }
  }
}
