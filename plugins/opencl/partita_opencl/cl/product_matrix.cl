// Matrix products and convolutions of float16 for NVIDIA's matrix units: a work-group computes a
// BM x BN tile of
//   y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + bias + residual)
// Each warp of 32 items keeps (BM / WM) x (BN / WN) sums of float32 in the fragments of
// mma.m16n8k16. Without the option NVIDIA, items compute the same sums from the same tiles by
// ordinary arithmetic, so that everything but the fragments is tested on any device.
//
// Options: BM BN BK  tile sizes, WM WN  warps along them
//   A_PACKED, A_VECTORS, B_VECTORS, WHOLE, IM2COL, CHANNELS  see product_loads.cl; a vector has
//              eight elements
//   HAND_OVER  as in product_tile.cl
//   PAIRS      y is written by two elements: columns is a multiple of two

#define ITEMS (WM * WN * 32)
#define A_ROWS (BM / WM / 16)
#define B_COLUMNS (BN / WN / 8)
#define FRAGMENTS (A_ROWS * B_COLUMNS)
// Rows of local memory start 16 bytes after a multiple of 64: reading eight of them hits all banks.
#ifdef A_PACKED
#define A_ROW (BM + 8)
#define A_SIZE (BK * A_ROW)
#else
#define A_ROW (BK + 8)
#define A_SIZE (BM * A_ROW)
#endif
#define B_ROW (BN + 8)
#define B_SIZE (BK * B_ROW)

#define BITS(p) ((__global const ushort*)(p))

#define VECTOR 8
#define SCALAR_TYPE ushort
#define VECTOR_TYPE uint4
#define GET_SCALAR(p, at) BITS(p)[at]
#define GET_VECTOR(p, at) *(__global const uint4*)(BITS(p) + at)
#define NO_SCALAR (ushort)0
#define NO_VECTOR (uint4)(0)
#ifndef A_PACKED
#ifdef A_VECTORS
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      *(__local uint4*)(a_tile[s] + e / (BK / 8) * A_ROW + e % (BK / 8) * 8) = a_next[i]; }
#else
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e / BK * A_ROW + e % BK] = a_next[i]; }
#endif
#endif
#include "product_loads.cl"

#define ELEMENT half
#define RESULT half

#ifdef NVIDIA
#define SHARED(p) ((uint)(size_t)(p))
#define LOAD_FRAGMENT(r, p) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \
    : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3]) : "r"(SHARED(p)) : "memory")
#define LOAD_TRANSPOSED(r, p) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" \
    : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3]) : "r"(SHARED(p)) : "memory")
#define MULTIPLY(c, a, b0, b1) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." UNIT_TYPE "." UNIT_TYPE \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
      "{%0,%1,%2,%3};" : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3]) \
      : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product_matrix(
#include "product_arguments.cl"
) {
  __local ushort a_tile[2][A_SIZE] __attribute__((aligned(16)));
  __local ushort b_tile[2][B_SIZE] __attribute__((aligned(16)));
#ifdef HAND_OVER
  __local int is_last;
#endif

  const int tid = get_local_id(0);
  const int lane = tid % 32, warp = tid / 32;
  const int warp_m = warp % WM * (BM / WM), warp_n = warp / WM * (BN / WN);
#include "product_place.cl"

  A_TYPE a_next[A_LOADS];
  B_TYPE b_next[B_LOADS];

  // An item's sums of a fragment: rows lane / 4 and 8 below, columns lane % 4 * 2 and the next.
  const int item_m = warp_m + lane / 4, item_n = warp_n + lane % 4 * 2;
  float row_bias[A_ROWS][2];
  bias += has_bias ? (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns) : 0;
  #pragma unroll
  for (int i = 0; i < A_ROWS; i++)
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      const int m = m0 + item_m + i * 16 + h * 8;
      row_bias[i][h] =
          has_bias && bias_step.y == 0 && m < rows ? GET(bias, m * bias_step.x) : 0.0f;
    }

  float sums[A_ROWS][B_COLUMNS][4];
  #pragma unroll
  for (int i = 0; i < A_ROWS; i++)
    #pragma unroll
    for (int j = 0; j < B_COLUMNS; j++)
      #pragma unroll
      for (int q = 0; q < 4; q++) sums[i][j][q] = 0.0f;

  LOAD(k_begin)
  STORE(0)
  barrier(CLK_LOCAL_MEM_FENCE);
  int s = 0;
  for (int k0 = k_begin; k0 < k_end; k0 += BK, s ^= 1) {
    const bool more = k0 + BK < k_end;
    if (more) LOAD(k0 + BK)
#ifdef NVIDIA
    #pragma unroll
    for (int k = 0; k < BK; k += 16) {
      uint av[A_ROWS][4], bv[B_COLUMNS / 2][4];
      #pragma unroll
      for (int i = 0; i < A_ROWS; i++) {
        // Four matrices of 8 x 8: rows 0 and 8 of the first eight k, then of the next eight.
#ifdef A_PACKED
        __local const ushort* at = a_tile[s] + (k + lane / 16 * 8 + lane % 8) * A_ROW + warp_m +
                                   i * 16 + lane / 8 % 2 * 8;
        LOAD_TRANSPOSED(av[i], at);
#else
        __local const ushort* at =
            a_tile[s] + (warp_m + i * 16 + lane % 16) * A_ROW + k + lane / 16 * 8;
        LOAD_FRAGMENT(av[i], at);
#endif
      }
      #pragma unroll
      for (int j = 0; j < B_COLUMNS / 2; j++) {
        // Columns 0 of the first and the next eight k, then columns 8 of both.
        __local const ushort* at =
            b_tile[s] + (k + lane % 16) * B_ROW + warp_n + j * 16 + lane / 16 * 8;
        LOAD_TRANSPOSED(bv[j], at);
      }
      #pragma unroll
      for (int i = 0; i < A_ROWS; i++)
        #pragma unroll
        for (int j = 0; j < B_COLUMNS; j++)
          MULTIPLY(sums[i][j], av[i], bv[j / 2][j % 2 * 2], bv[j / 2][j % 2 * 2 + 1]);
    }
#else
    for (int i = 0; i < A_ROWS; i++)
      for (int j = 0; j < B_COLUMNS; j++)
        for (int q = 0; q < 4; q++) {
          const int m = item_m + i * 16 + q / 2 * 8, n = item_n + j * 8 + q % 2;
          float sum = sums[i][j][q];
          for (int k = 0; k < BK; k++) {
#ifdef A_PACKED
            const int at = k * A_ROW + m;
#else
            const int at = m * A_ROW + k;
#endif
            sum += GET_LOCAL((__local const half*)a_tile[s], at) *
                   GET_LOCAL((__local const half*)b_tile[s], k * B_ROW + n);
          }
          sums[i][j][q] = sum;
        }
#endif
    // The other buffer was last read before the previous barrier, so it may be written now.
    if (more) STORE(s ^ 1)
    barrier(CLK_LOCAL_MEM_FENCE);
  }

#ifdef HAND_OVER
  __global float4* slots = partial + tile * splits * (FRAGMENTS * ITEMS) + tid;
  #pragma unroll
  for (int i = 0; i < A_ROWS; i++)
    #pragma unroll
    for (int j = 0; j < B_COLUMNS; j++)
      slots[((size_t)split * FRAGMENTS + i * B_COLUMNS + j) * ITEMS] =
          (float4)(sums[i][j][0], sums[i][j][1], sums[i][j][2], sums[i][j][3]);
#include "hand_over.cl"
  #pragma unroll
  for (int i = 0; i < A_ROWS; i++)
    #pragma unroll
    for (int j = 0; j < B_COLUMNS; j++)
      #pragma unroll
      for (int q = 0; q < 4; q++) sums[i][j][q] = 0.0f;
  for (int part = 0; part < splits; part++)
    #pragma unroll
    for (int i = 0; i < A_ROWS; i++)
      #pragma unroll
      for (int j = 0; j < B_COLUMNS; j++) {
        const float4 v = slots[((size_t)part * FRAGMENTS + i * B_COLUMNS + j) * ITEMS];
        sums[i][j][0] += v.x; sums[i][j][1] += v.y; sums[i][j][2] += v.z; sums[i][j][3] += v.w;
      }
#endif

  y += (size_t)z * rows * columns;
  residual += has_residual ? (size_t)z * rows * columns : 0;
  const bool column_bias = has_bias && bias_step.y != 0;
  #pragma unroll
  for (int j = 0; j < B_COLUMNS; j++) {
    const int n = n0 + item_n + j * 8;
    if (n >= columns) continue;
    #pragma unroll
    for (int i = 0; i < A_ROWS; i++)
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        const int m = m0 + item_m + i * 16 + h * 8;
        if (m >= rows) continue;
        const size_t at = (size_t)m * columns + n;
        float v[2];
        #pragma unroll
        for (int q = 0; q < 2; q++) {
          v[q] = sums[i][j][h * 2 + q] + row_bias[i][h];
          if (n + q >= columns) continue;
          if (column_bias) v[q] += GET(bias, m * bias_step.x + (n + q) * bias_step.y);
          if (has_residual) v[q] += GET(residual, at + q);
          v[q] = activate(v[q], ACTIVATION, alpha, beta);
        }
#ifdef PAIRS
        PUT2(y, at, ((float2)(v[0], v[1])));
#else
        PUT(y, at, v[0]);
        if (n + 1 < columns) PUT(y, at + 1, v[1]);
#endif
      }
  }
}
