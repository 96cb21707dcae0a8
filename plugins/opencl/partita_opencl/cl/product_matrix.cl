// Matrix products and convolutions of float16 for NVIDIA's matrix units: a work-group computes a
// BM x BN tile of
//   y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + bias + residual)
// Each warp of 32 items keeps (BM / WM) x (BN / WN) sums of float32 in the fragments of
// mma.m16n8k16. Without the option NVIDIA, items compute the same sums from the same tiles by
// ordinary arithmetic, so that everything but the fragments is tested on any device.
//
// Options: BM BN BK  tile sizes, WM WN  warps along them
//   A_PACKED   a is stored [k][m] with a_step elements per k (weights, packed once), else [m][k]
//   A_EIGHTS   a is read by eight elements: a_step, or the depth, is a multiple of eight
//   B_EIGHTS   b is read by eight elements: columns is a multiple of eight
//   PAIRS      y is written by two elements: columns is a multiple of two
//   WHOLE, IM2COL, CHANNELS, HAND_OVER  as in product_tile.cl

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

#ifdef WHOLE
#define IN_DEPTH(k) true
#else
#define IN_DEPTH(k) ((k) < k_end)
#endif

#define BITS(p) ((__global const ushort*)(p))

#ifdef A_EIGHTS
#define A_LOADS (BM * BK / 8 / ITEMS)
#else
#define A_LOADS (BM * BK / ITEMS)
#endif
#if defined(B_EIGHTS) && !defined(IM2COL)
#define B_LOADS (BN * BK / 8 / ITEMS)
#else
#define B_LOADS (BN * BK / ITEMS)
#endif

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
    __global const half* restrict a, __global const half* restrict b,
    __global const half* restrict bias, __global const half* restrict residual,
    __global half* restrict y,
    const int rows, const int columns, const int depth, const int batches,
    const int4 batch_map, const int bias_mod, const int2 bias_step, const int has_bias,
    const int has_residual, const float alpha, const float beta, const int k_per_split,
    const int a_step
#ifdef HAND_OVER
    , __global float4* partial, __global int* counters, const int splits
#endif
#ifdef IM2COL
    , __global const int4* restrict taps, const int4 in_size, const int4 out_size,
    const int4 stride, const int4 pad
#endif
) {
  __local ushort a_tile[2][A_SIZE] __attribute__((aligned(16)));
  __local ushort b_tile[2][B_SIZE] __attribute__((aligned(16)));
#ifdef HAND_OVER
  __local int is_last;
#endif

  const int tid = get_local_id(0);
  const int lane = tid % 32, warp = tid / 32;
  const int warp_m = warp % WM * (BM / WM), warp_n = warp / WM * (BN / WN);
  const int column_tiles = (columns + BN - 1) / BN;
  const int row_tiles = (rows + BM - 1) / BM;
  const size_t tiles = (size_t)column_tiles * row_tiles * batches;
  const size_t tile = get_group_id(0) % tiles;
  const int split = (int)(get_group_id(0) / tiles);
  const int n0 = (int)(tile % column_tiles) * BN;
  const int m0 = (int)(tile / column_tiles % row_tiles) * BM;
  const int z = (int)(tile / column_tiles / row_tiles);
  const int k_begin = split * k_per_split;
  const int k_end = min(depth, k_begin + k_per_split);

#ifdef A_PACKED
  a += (size_t)((z / batch_map.x) % batch_map.y) * depth * a_step;
#else
  a += (size_t)((z / batch_map.x) % batch_map.y) * rows * depth;
#endif
#ifdef IM2COL
  const int plane = in_size.z * in_size.y * in_size.x;
  b += (size_t)z * in_size.w * plane;
#else
  b += (size_t)((z / batch_map.z) % batch_map.w) * depth * columns;
#endif
#if defined(B_EIGHTS) && !defined(IM2COL)
  const int b_at = tid % (BN / 8) * 8, bk = tid / (BN / 8);
  const int b_rows = ITEMS / (BN / 8);
#else
  const int b_at = tid % BN, bk = tid / BN;
  const int b_rows = ITEMS / BN;
#endif
  const int bn = n0 + b_at;
#ifdef IM2COL
  const int ox = bn % out_size.x;
  const int oy = (bn / out_size.x) % out_size.y;
  const int oz = bn / (out_size.x * out_size.y);
  const int ix = ox * stride.x - pad.x;
  const int iy = oy * stride.y - pad.y;
  const int iz = oz * stride.z - pad.z;
  const int origin = (iz * in_size.y + iy) * in_size.x + ix;
  #define INSIDE(t) ((uint)(ix + (t).w) < (uint)in_size.x && \
                     (uint)(iy + (t).z) < (uint)in_size.y && (uint)(iz + (t).y) < (uint)in_size.z)
#endif
#ifdef CHANNELS
  uint inside = 0;  // a bit per tap
  if (bn < columns)
    for (int t = 0; t < depth / in_size.w; t++) {
      const int4 at = taps[t];
      if (INSIDE(at)) inside |= 1u << t;
    }
  int tap = k_begin / in_size.w;
  int channel = k_begin % in_size.w;
  int from = origin + taps[tap].x + (channel + bk) * plane;
#endif

#ifdef A_EIGHTS
  uint4 a_next[A_LOADS];
#else
  ushort a_next[A_LOADS];
#endif
#if defined(B_EIGHTS) && !defined(IM2COL)
  uint4 b_next[B_LOADS];
#else
  ushort b_next[B_LOADS];
#endif

#if defined(A_PACKED) && defined(A_EIGHTS)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % (BM / 8) * 8; \
      const int k = (k0) + e / (BM / 8); a_next[i] = (m < a_step && IN_DEPTH(k)) ? \
        *(__global const uint4*)(BITS(a) + (size_t)k * a_step + m) : (uint4)(0); }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      *(__local uint4*)(a_tile[s] + e / (BM / 8) * A_ROW + e % (BM / 8) * 8) = a_next[i]; }
#elif defined(A_PACKED)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % BM, k = (k0) + e / BM; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? BITS(a)[(size_t)k * a_step + m] : (ushort)0; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e / BM * A_ROW + e % BM] = a_next[i]; }
#elif defined(A_EIGHTS)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / (BK / 8); \
      const int k = (k0) + e % (BK / 8) * 8; a_next[i] = (m < rows && IN_DEPTH(k)) ? \
        *(__global const uint4*)(BITS(a) + (size_t)m * depth + k) : (uint4)(0); }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      *(__local uint4*)(a_tile[s] + e / (BK / 8) * A_ROW + e % (BK / 8) * 8) = a_next[i]; }
#else
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / BK, k = (k0) + e % BK; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? BITS(a)[(size_t)m * depth + k] : (ushort)0; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e / BK * A_ROW + e % BK] = a_next[i]; }
#endif

#if defined(CHANNELS)
  #define LOAD_B(k0) { b_next[i] = (inside >> tap) & 1u ? BITS(b)[from + i * b_rows * plane] \
                                                       : (ushort)0; }
  #define AFTER_B() { channel += BK; from += BK * plane; \
      if (channel == in_size.w) { channel = 0; tap++; from = origin + bk * plane + taps[tap].x; } }
#elif defined(IM2COL)
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; ushort v = 0; \
      if (k < k_end && bn < columns) { const int4 t = taps[k]; \
        if (INSIDE(t)) v = BITS(b)[origin + t.x]; } \
      b_next[i] = v; }
  #define AFTER_B()
#elif defined(B_EIGHTS)
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; \
      b_next[i] = (IN_DEPTH(k) && bn < columns) ? \
        *(__global const uint4*)(BITS(b) + (size_t)k * columns + bn) : (uint4)(0); }
  #define AFTER_B()
#else
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; \
      b_next[i] = (IN_DEPTH(k) && bn < columns) ? BITS(b)[(size_t)k * columns + bn] : (ushort)0; }
  #define AFTER_B()
#endif
#if defined(B_EIGHTS) && !defined(IM2COL)
  #define STORE_B(s) { *(__local uint4*)(b_tile[s] + (bk + i * b_rows) * B_ROW + b_at) = b_next[i]; }
#else
  #define STORE_B(s) { b_tile[s][(bk + i * b_rows) * B_ROW + b_at] = b_next[i]; }
#endif
  #define LOAD(k0) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) LOAD_A(k0) \
                     _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) LOAD_B(k0) AFTER_B() }
  #define STORE(s) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) STORE_A(s) \
                     _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) STORE_B(s) }

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
  DEVICE_FENCE();
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (tid == 0) {
    is_last = atomic_inc(counters + tile) == splits - 1;
    if (is_last) atomic_xchg(counters + tile, 0);  // for the next launch
  }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (!is_last) return;
  DEVICE_FENCE();
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
