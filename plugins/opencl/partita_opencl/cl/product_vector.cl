// Products of few rows with a matrix: y[m][n] = sum_k a[m][k] * b[k][n], bound by reading b once.
// A work-group owns LX * WIDTH columns and cuts its k range over LY rows of items, then adds up.
//
// Options: LX, LY (a power of two), ROWS rows of a per item
//   WIDTH  columns of an item, 1 or 4; columns is a multiple of it
//   SPLIT  raw sums of each k range go to y[split][m][n], else bias, residual and activation are
//          applied

#if WIDTH == 4
typedef float4 Columns;
#define GET_B(i) GET4(b, i)
#else
typedef float Columns;
#define GET_B(i) GET(b, i)
#endif

__kernel __attribute__((reqd_work_group_size(LX, LY, 1)))
void product_vector(
    __global const REAL* restrict a, __global const REAL* restrict b,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
#ifdef SPLIT
    __global float* restrict y,
#else
    __global REAL* restrict y,
#endif
    const int rows, const int columns, const int depth, const int2 bias_step,
    const int has_bias, const int has_residual, const float alpha,
    const float beta, const int k_per_split
) {
  __local Columns partial[LY][ROWS][LX];
  const int x = get_local_id(0), part = get_local_id(1);
  const int n = (get_group_id(0) * LX + x) * WIDTH;
  const int split = get_group_id(1);
  const int m0 = get_group_id(2) * ROWS;
  const int k_end = min(depth, (split + 1) * k_per_split);

  Columns sums[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; r++) sums[r] = (Columns)(0.0f);
  if (n < columns) {
    #pragma unroll 4
    for (int k = split * k_per_split + part; k < k_end; k += LY) {
      const Columns v = GET_B((size_t)k * columns + n);
      #pragma unroll
      for (int r = 0; r < ROWS; r++)
        sums[r] = fma((Columns)(GET(a, (size_t)min(m0 + r, rows - 1) * depth + k)), v, sums[r]);
    }
  }
  #pragma unroll
  for (int r = 0; r < ROWS; r++) partial[part][r][x] = sums[r];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = LY / 2; step > 0; step /= 2) {
    if (part < step) {
      #pragma unroll
      for (int r = 0; r < ROWS; r++) partial[part][r][x] += partial[part + step][r][x];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (part != 0 || n >= columns) return;
#ifdef SPLIT
  y += (size_t)split * rows * columns;
#endif
  #pragma unroll
  for (int r = 0; r < ROWS; r++) {
    const int m = m0 + r;
    if (m >= rows) continue;
    const size_t at = (size_t)m * columns + n;
    for (int q = 0; q < WIDTH; q++) {
      float v = ((__local const float*)&partial[0][r][x])[q];
#ifdef SPLIT
      y[at + q] = v;
#else
      if (has_bias) v += GET(bias, m * bias_step.x + (n + q) * bias_step.y);
      if (has_residual) v += GET(residual, at + q);
      PUT(y, at + q, activate(v, ACTIVATION, alpha, beta));
#endif
    }
  }
}
