// Matrix products and convolutions for GPUs: a work-group computes a BM x BN tile of
//   y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + bias + residual)
// through two local-memory buffers, or STAGES of them; each item keeps TM x TN sums in registers.
//
// Options: BM BN BK TM TN  tile sizes; (BM/TM)*(BN/TN) items, a multiple of BN
//   A_PACKED, A_VECTORS, B_VECTORS, WHOLE, IM2COL, CHANNELS  see product_loads.cl; a vector has
//              four elements, and with B_VECTORS y is written by vectors, too
//   STAGES     tiles come by copies that arrive later; see product_copies.cl
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

// What an item multiplies for a term of its sums, and their products.
#define LOAD_TERM(av, bv, s, k) \
  { \
    _Pragma("unroll") \
    for (int i = 0; i < TM / 4; i++) { \
      const float4 v = *(__local const float4*)(a_tile[s] + (k) * A_ROW + i * A_WIDTH + ty * 4); \
      av[i * 4] = v.x; av[i * 4 + 1] = v.y; av[i * 4 + 2] = v.z; av[i * 4 + 3] = v.w; \
    } \
    _Pragma("unroll") \
    for (int j = 0; j < TN / 4; j++) { \
      const float4 v = *(__local const float4*)(b_tile[s] + (k) * BN + j * B_WIDTH + tx * 4); \
      bv[j * 4] = v.x; bv[j * 4 + 1] = v.y; bv[j * 4 + 2] = v.z; bv[j * 4 + 3] = v.w; \
    } \
  }
#define ADD_TERM(av, bv) \
  _Pragma("unroll") \
  for (int i = 0; i < TM; i++) \
    _Pragma("unroll") \
    for (int j = 0; j < TN; j++) \
      sums[i][COLUMN(i, j)] = fma(av[i], bv[COLUMN(i, j)], sums[i][COLUMN(i, j)]);

#define VECTOR 4
#ifdef STAGES
#define BUFFERS STAGES
#define COLUMN(i, j) ((i) % 2 ? TN - 1 - (j) : (j))  // fewer registers than in order
#include "product_copies.cl"
#else
#define BUFFERS 2
#define COLUMN(i, j) (j)
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
#endif

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
  __local float a_tile[BUFFERS][BK * A_ROW] __attribute__((aligned(16)));
  __local float b_tile[BUFFERS][BK * BN] __attribute__((aligned(16)));
#ifdef HAND_OVER
  __local int is_last;
#endif

  const int tid = get_local_id(0);
#include "product_place.cl"

#ifdef STAGES
  // A warp's items are 4 x 8, so that they read few places of a tile at a time.
  const int wide = tid / 32 % (BN / TN / 8), high = tid / 32 / (BN / TN / 8);
  const int tx = wide * 8 + tid % 8, ty = high * 4 + tid / 8 % 4;
#else
  const int tx = tid % (BN / TN), ty = tid / (BN / TN);
#endif
  bias += has_bias ? (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns) : 0;
#define ROW_BIAS(m) (has_bias && bias_step.y == 0 && (m) < rows ? GET(bias, (m) * bias_step.x) : 0.0f)
  float sums[TM][TN];
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) sums[i][j] = 0.0f;

#ifdef STAGES
  FIND_PLACES()
  #pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (k_begin + s * BK < k_end) BRING(s, k_begin + s * BK)
    COMMIT();
  }
  int s = 0, to = STAGES - 1;
  float av[2][TM], bv[2][TN];
  ARRIVED(STAGES - 2);
  barrier(CLK_LOCAL_MEM_FENCE);
  LOAD_TERM(av[0], bv[0], 0, 0)
  for (int k0 = k_begin; k0 < k_end; k0 += BK) {
    const int later = k0 + (STAGES - 1) * BK;
    if (later < k_end) BRING(to, later)
    COMMIT();
    to = s;
    #pragma unroll
    for (int k = 0; k < BK - 1; k++) {
      LOAD_TERM(av[(k + 1) % 2], bv[(k + 1) % 2], s, k + 1)
      ADD_TERM(av[k % 2], bv[k % 2])
    }
    // The last term is multiplied while the first one of the next step is loaded.
    s = s == STAGES - 1 ? 0 : s + 1;
    ARRIVED(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
    LOAD_TERM(av[0], bv[0], s, 0)
    ADD_TERM(av[1], bv[1])
  }
#else
  float row_bias[TM];
  #pragma unroll
  for (int i = 0; i < TM; i++) row_bias[i] = ROW_BIAS(m0 + (i / 4) * A_WIDTH + ty * 4 + i % 4);
  A_TYPE a_next[A_LOADS];
  B_TYPE b_next[B_LOADS];
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
      LOAD_TERM(av, bv, s, k)
      ADD_TERM(av, bv)
    }
    // The other buffer was last read before the previous barrier, so it may be written now.
    if (more) STORE(s ^ 1)
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif

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
#ifdef STAGES  // whose items have no registers to keep it in
    const float of_row = ROW_BIAS(m);
#else
    const float of_row = row_bias[i];
#endif
    #pragma unroll
    for (int j = 0; j < TN / 4; j++) {
      const int n = n0 + j * B_WIDTH + tx * 4;
      const size_t at = (size_t)m * columns + n;
      float v[4] = { sums[i][j * 4], sums[i][j * 4 + 1], sums[i][j * 4 + 2], sums[i][j * 4 + 3] };
#ifdef B_VECTORS
      if (n >= columns) continue;
#ifndef SPLIT
      const float4 more = has_residual ? GET4(residual, at) : (float4)(0.0f);
      v[0] += of_row + more.x; v[1] += of_row + more.y;
      v[2] += of_row + more.z; v[3] += of_row + more.w;
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
        v[q] += of_row;
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
