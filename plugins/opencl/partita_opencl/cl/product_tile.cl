// Matrix products and convolutions for GPUs: a work-group computes a BM x BN tile of
//   y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + bias + residual)
// through two local-memory buffers; each item keeps TM x TN sums in registers.
//
// Options: BM BN BK TM TN  tile sizes; (BM/TM)*(BN/TN) items, a multiple of BN
//   A_PACKED   a is stored [k][m] with a_step elements per k (weights, packed once), else [m][k]
//   A_QUADS    a is read by four elements: a_step, or the depth, is a multiple of four
//   B_QUADS    b is read and y written by four elements: columns is a multiple of four
//   WHOLE      the depth is a multiple of BK
//   IM2COL     b[k][n] is pixel n of the window tap k of an image (n = output pixel)
//   CHANNELS   IM2COL whose k runs over channels first, of which there are a multiple of BK, then
//              over at most 32 taps
//   Sums of which a group makes a part only (the k range is cut in `splits`):
//   SPLIT      y[split][z][m][n] gets raw sums; product_sum.cl adds them up
//   HAND_OVER  raw sums go to `partial`; the group that is the last to come to a tile adds them up,
//              in the order of the splits, so that results repeat bit for bit

#define ITEMS ((BM / TM) * (BN / TN))
#define A_ROW (BM + 4)
#define A_WIDTH (BM / (TM / 4))
#define B_WIDTH (BN / (TN / 4))
#define QUADS (TM * TN / 4)

#ifdef A_QUADS
#define A_LOADS (BM * BK / 4 / ITEMS)
#else
#define A_LOADS (BM * BK / ITEMS)
#endif
#if defined(B_QUADS) && !defined(IM2COL)
#define B_LOADS (BN * BK / 4 / ITEMS)
#else
#define B_LOADS (BN * BK / ITEMS)
#endif

#ifdef WHOLE
#define IN_DEPTH(k) true
#else
#define IN_DEPTH(k) ((k) < k_end)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product_tile(
    __global const REAL* restrict a, __global const REAL* restrict b,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
#ifdef SPLIT
    __global float* restrict y,
#else
    __global REAL* restrict y,
#endif
    const int rows, const int columns, const int depth, const int batches,
    // Matrix (z / div) % mod of a and b belongs to batch z; bias has one vector per (z % mod).
    const int4 batch_map, const int bias_mod,
    // bias index = m * x + n * y; x = y = 0 and has_bias = 0 without one.
    const int2 bias_step, const int has_bias, const int has_residual,
    const float alpha, const float beta, const int k_per_split, const int a_step
#ifdef HAND_OVER
    , __global float4* partial, __global int* counters, const int splits
#endif
#ifdef IM2COL
    // Per k: offset in the image, then its z, y, x; with CHANNELS per tap, for channel 0.
    , __global const int4* restrict taps,
    const int4 in_size,                    // x, y, z of the image, w: channels
    const int4 out_size,                   // x, y, z of the output
    const int4 stride, const int4 pad
#endif
) {
  __local float a_tile[2][BK * A_ROW] __attribute__((aligned(16)));
  __local float b_tile[2][BK * BN] __attribute__((aligned(16)));
#ifdef HAND_OVER
  __local int is_last;
#endif

  const int tid = get_local_id(0);
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

#if defined(B_QUADS) && !defined(IM2COL)
  const int bn = n0 + tid % (BN / 4) * 4;
  const int bk = tid / (BN / 4);
  const int b_rows = ITEMS / (BN / 4);
#else
  // The column of b that this item loads stays the same for the whole k loop.
  const int bn = n0 + tid % BN;
  const int bk = tid / BN;
  const int b_rows = ITEMS / BN;
#endif
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

  float row_bias[TM];
  const int tx = tid % (BN / TN), ty = tid / (BN / TN);
  bias += has_bias ? (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns) : 0;
  #pragma unroll
  for (int i = 0; i < TM; i++) {
    const int m = m0 + (i / 4) * A_WIDTH + ty * 4 + i % 4;
    row_bias[i] = has_bias && bias_step.y == 0 && m < rows ? GET(bias, m * bias_step.x) : 0.0f;
  }

#ifdef A_QUADS
  float4 a_next[A_LOADS];
#else
  float a_next[A_LOADS];
#endif
#if defined(B_QUADS) && !defined(IM2COL)
  float4 b_next[B_LOADS];
#else
  float b_next[B_LOADS];
#endif
  float sums[TM][TN];
  #pragma unroll
  for (int i = 0; i < TM; i++)
    #pragma unroll
    for (int j = 0; j < TN; j++) sums[i][j] = 0.0f;

#if defined(A_PACKED) && defined(A_QUADS)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % (BM / 4) * 4; \
      const int k = (k0) + e / (BM / 4); \
      a_next[i] = (m < a_step && IN_DEPTH(k)) ? GET4(a, (size_t)k * a_step + m) : (float4)(0.0f); }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      *(__local float4*)(a_tile[s] + e / (BM / 4) * A_ROW + e % (BM / 4) * 4) = a_next[i]; }
#elif defined(A_PACKED)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % BM, k = (k0) + e / BM; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? GET(a, (size_t)k * a_step + m) : 0.0f; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e / BM * A_ROW + e % BM] = a_next[i]; }
#elif defined(A_QUADS)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / (BK / 4); \
      const int k = (k0) + e % (BK / 4) * 4; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? GET4(a, (size_t)m * depth + k) : (float4)(0.0f); }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      __local float* to = a_tile[s] + e % (BK / 4) * 4 * A_ROW + e / (BK / 4); \
      to[0] = a_next[i].x; to[A_ROW] = a_next[i].y; \
      to[2 * A_ROW] = a_next[i].z; to[3 * A_ROW] = a_next[i].w; }
#else
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / BK, k = (k0) + e % BK; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? GET(a, (size_t)m * depth + k) : 0.0f; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e % BK * A_ROW + e / BK] = a_next[i]; }
#endif

#if defined(CHANNELS)
  #define LOAD_B(k0) { \
      b_next[i] = (inside >> tap) & 1u ? GET(b, from + i * b_rows * plane) : 0.0f; }
  #define AFTER_B() { channel += BK; from += BK * plane; \
      if (channel == in_size.w) { channel = 0; tap++; from = origin + bk * plane + taps[tap].x; } }
#elif defined(IM2COL)
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; float v = 0.0f; \
      if (k < k_end && bn < columns) { const int4 t = taps[k]; \
        if (INSIDE(t)) v = GET(b, origin + t.x); } \
      b_next[i] = v; }
  #define AFTER_B()
#elif defined(B_QUADS)
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; b_next[i] = \
      (IN_DEPTH(k) && bn < columns) ? GET4(b, (size_t)k * columns + bn) : (float4)(0.0f); }
  #define AFTER_B()
#else
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; \
      b_next[i] = (IN_DEPTH(k) && bn < columns) ? GET(b, (size_t)k * columns + bn) : 0.0f; }
  #define AFTER_B()
#endif
#if defined(B_QUADS) && !defined(IM2COL)
  #define STORE_B(s) { *(__local float4*)(b_tile[s] + (bk + i * b_rows) * BN + tid % (BN / 4) * 4) \
      = b_next[i]; }
#else
  #define STORE_B(s) { b_tile[s][(bk + i * b_rows) * BN + tid % BN] = b_next[i]; }
#endif
  #define LOAD(k0) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) LOAD_A(k0) \
                     _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) LOAD_B(k0) AFTER_B() }
  #define STORE(s) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) STORE_A(s) \
                     _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) STORE_B(s) }

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
#ifdef B_QUADS
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
