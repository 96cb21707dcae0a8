// Convolutions of images with channels last, and products by constant matrices, of float16 on
// NVIDIA's matrix units: a work-group computes BM pixels (rows) x BN filters (columns) of
//   y[m][n] = act(sum_k a[pixel of m and tap of k][channel of k] * w[n][k] + bias[n] + residual)
// Tiles stream into local memory by asynchronous copies, STAGES deep, in the layout that ldmatrix
// and wgmma read without bank conflicts. Each warp keeps (BM / WM) x (BN / WN) sums of float32 in
// the fragments of mma.m16n8k16, which are those of wgmma too, where WM is BM / 16 and WN is 1.
// Without the option NVIDIA, items copy and compute the same by ordinary instructions, so that
// everything but these is tested on any device.
//
// Options: BM BN  tile sizes, WM WN  warps along them, STAGES
//   WARPGROUP  multiply by wgmma, for whose BN the macro WGMMA(sums, a, b) is generated
//   AT_ONCE    a group has at most STAGES steps: all its tiles are copied before the first product
//   TAPS       windows of several taps, or with padding; else each row reads one pixel
//   DENSE      without TAPS: row m reads pixel m
//   EXACT      all steps are whole: channels are a multiple of 64
//   RESIDUAL   the residual is added; EARLY: copied while products are computed, to local memory
//              of its own; not with HAND_OVER or LOOSE
//   LOOSE      y is written from the sums: rows of it have `y_columns` elements, which need not be a
//              multiple of eight; SINGLE: of float32; PAIRS: of an even number of float32;
//              ADDS_SINGLE: with PAIRS, the residual is of float32
//   HAND_OVER  as in product_tile.cl
//   NORMALIZE  with AT_ONCE, EXACT and DENSE: rows of a are normalized first, as in
//              normalize_short.cl; groups of the first columns write them to `normalized`. A warp
//              takes NORMALIZE times 256 elements. SINGLE_ROWS: these rows are of float32, and read
//              by the items that normalize them; SINGLE_NORMAL: so are rows of `normalized`

#define PIPE_BYTES (STAGES * STAGE_BYTES)
// Results in local memory; rows start 16 bytes after a multiple of 64: no bank conflicts.
#define OUT_ROW (BN + 8)
#define OUT_BYTES (BM * OUT_ROW * 2)
#define OUT_LOADS (BM * BN / 8 / ITEMS)
#ifdef EARLY
#define OUT_AT PIPE_BYTES
#define LOCAL_BYTES (PIPE_BYTES + OUT_BYTES)
#else
#define OUT_AT 0
#define LOCAL_BYTES (PIPE_BYTES > OUT_BYTES ? PIPE_BYTES : OUT_BYTES)
#endif
#define BAND 8

#include "streaming.cl"

#ifdef AT_ONCE
#define AHEAD STAGES
#elif defined(WARPGROUP)
#define AHEAD (STAGES - 2)  // the products of the step before may still read their tiles
#else
#define AHEAD (STAGES - 1)
#endif

#ifdef SINGLE
#define RESULT float
#else
#define RESULT half
#endif
#ifdef ADDS_SINGLE
#define ADDED float
#else
#define ADDED half
#endif
#ifdef SINGLE_ROWS
#define ROWS_OF float
#else
#define ROWS_OF half
#endif
#ifdef SINGLE_NORMAL
#define NORMAL float
#define PUT_NORMAL8(p, i, v) *(__global float8*)((p) + (i)) = vload8(0, v)
#else
#define NORMAL half
#define PUT_NORMAL8(p, i, v) PUT8(p, i, v)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product_stream(
    __global const ROWS_OF* restrict a, __global const half* restrict w,
    __global const float* restrict bias, __global const ADDED* restrict residual,
    __global RESULT* restrict y,
    // Columns of a group and depth are multiples of eight; depth: taps times channels, filled up.
    const int rows, const int columns, const int depth,
    const int4 image,    // x, y, halves from pixel to pixel, channels of a group
    const int4 out,      // x, y, halves from pixel to pixel of y, groups
    const int4 window,   // taps in x, dilation in x and y, channels of a group filled up
    const int4 step,     // stride in x and y, pad in x and y
    const int y_columns, const float alpha, const float beta, const int tiles_per_split
#ifdef HAND_OVER
    , __global float4* partial, __global int* counters, const int splits
#endif
#ifdef NORMALIZE
    , __global NORMAL* normalized, __global const float* restrict scale,
    __global const float* restrict shift, const float epsilon
#endif
) {
  __local char tiles[LOCAL_BYTES] __attribute__((aligned(1024)));
  __local float addend[BN];
#ifdef HAND_OVER
  __local int is_last;
#endif
#if defined(NORMALIZE) && !defined(NVIDIA)
  __local float scratch[ITEMS];
#else
  __local float* scratch = addend;  // not used
#endif
  const int pitch = image.z, channels = image.w, filled = window.w, taps_x = window.x;
  const int tid = get_local_id(0);
  const int lane = tid % 32, warp = tid / 32;
  const int warp_m = warp % WM * (BM / WM), warp_n = warp / WM * (BN / WN);
  const int column_tiles = (columns + BN - 1) / BN;
  const int row_tiles = (rows + BM - 1) / BM;
  const int tiles_here = column_tiles * row_tiles;
  // Groups that run together share rows and columns: bands of BAND row tiles.
  const int tile = get_group_id(0) % (tiles_here * out.w);
  const int split = get_group_id(0) / (tiles_here * out.w);
  const int group = tile / tiles_here;
  const int band = tile % tiles_here / (BAND * column_tiles);
  const int within = tile % tiles_here - band * (BAND * column_tiles);
  const int high = min(BAND, row_tiles - band * BAND);
  const int m0 = (band * BAND + within % high) * BM;
  const int n0 = within / high * BN;
  const int steps = (depth + BK - 1) / BK;
  const int first = split * tiles_per_split;
  const int last = min(steps, first + tiles_per_split);

  const int chunk = tid % 8, row0 = tid / 8;
  int k = first * BK + chunk * 8;
  a += group * channels;
  w += (size_t)group * columns * depth + (size_t)(n0 + row0) * depth + k;
  for (int i = tid; i < BN; i += ITEMS)
    addend[i] = n0 + i < columns ? bias[group * columns + n0 + i] : 0.0f;

  uint filters = 0;  // a bit per row of w that exists
  #pragma unroll
  for (int i = 0; i < B_LOADS; i++)
    filters |= (n0 + row0 + i * LOAD_ROWS < columns ? 1u : 0u) << i;
  uint inside = 0;  // a bit per row whose pixel exists
#ifndef DENSE
  int base[A_LOADS];
#endif
#ifdef TAPS
  int iy[A_LOADS], ix[A_LOADS];
  int c = k % filled, tap_x = k / filled % taps_x;
  int dx = tap_x * window.y, dy = k / filled / taps_x * window.z;
  #define LOOK() { inside = 0; _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) \
      inside |= ((uint)(iy[i] + dy) < (uint)image.y && (uint)(ix[i] + dx) < (uint)image.x \
                 ? 1u : 0u) << i; }
#endif
  #pragma unroll
  for (int i = 0; i < A_LOADS; i++) {
    const int m = m0 + row0 + i * LOAD_ROWS;
#ifdef DENSE
    inside |= (m < rows ? 1u : 0u) << i;
#else
    const int n = m / (out.x * out.y), p = m - n * (out.x * out.y);
    const int oy = p / out.x, ox = p - oy * out.x;
#ifdef TAPS
    iy[i] = m < rows ? oy * step.y - step.w : INT_MIN;  // no tap reaches the image
    ix[i] = ox * step.x - step.z;
    base[i] = ((n * image.y + iy[i]) * image.x + ix[i]) * pitch;
#else
    inside |= (m < rows ? 1u : 0u) << i;
    base[i] = m < rows ? ((n * image.y + oy * step.y) * image.x + ox * step.x) * pitch + k : 0;
#endif
#endif
  }
#ifdef SINGLE_ROWS
  a += (size_t)m0 * depth;
#elif defined(DENSE)
  a += (size_t)(m0 + row0) * pitch + k;
#endif
#ifdef TAPS
  LOOK()
#endif
  const int at = CHUNK(row0, chunk);

  // Columns past the end, and what lies between channels and their filled up number, are zeros: a
  // copy of no bytes reads nothing, wherever it points.
#ifdef EXACT
#define A_CHUNK 16
#define B_CHUNK 16
#else
#define A_CHUNK (k < depth ? min(16, (channels - CHANNEL) * 2) : 0)
#define B_CHUNK (k < depth ? 16 : 0)
#endif
#ifdef TAPS
#define CHANNEL c
#define FROM(i) (base[i] + offset)
#define NEXT() { k += BK; c += BK; \
    if (c >= filled) { \
      do { \
        c -= filled; dx += window.y; \
        if (++tap_x == taps_x) { tap_x = 0; dx = 0; dy += window.z; } \
      } while (c >= filled); \
      LOOK() } }
#else
#define CHANNEL k
#ifdef DENSE
#define FROM(i) ((size_t)(i) * LOAD_ROWS * pitch)
#else
#define FROM(i) base[i]
#endif
#ifdef SINGLE_ROWS
#define NEXT() { k += BK; }
#else
#define NEXT() { k += BK; a += BK; }
#endif
#endif
#ifdef TAPS
#define OFFSET() const int offset = (dy * image.x + dx) * pitch + c;
#else
#define OFFSET()
#endif
#ifdef SINGLE_ROWS
#define LOAD_ROWS_OF_A()
#else
#define LOAD_ROWS_OF_A() _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) \
      COPY(place + i * LOAD_ROWS * 128, a + FROM(i), inside >> i & 1 ? a_bytes : 0);
#endif
#define LOAD(stage) { \
    __local char* place = tiles + (stage) * STAGE_BYTES + at; \
    const int a_bytes = A_CHUNK, b_bytes = B_CHUNK; \
    OFFSET() \
    LOAD_ROWS_OF_A() \
    _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) \
      COPY(place + A_BYTES + i * LOAD_ROWS * 128, w + (size_t)i * LOAD_ROWS * depth, \
           filters >> i & 1 ? b_bytes : 0); \
    w += BK; NEXT() }

  // An item's part of rows of y: eight neighbouring columns, always the same ones.
  const int out_n = n0 + tid % (BN / 8) * 8;
  __local char* results = tiles + OUT_AT;
#define OUT_PLACE(i) ((tid / (BN / 8) + (i) * (ITEMS / (BN / 8))) * OUT_ROW + tid % (BN / 8) * 8)
#define OUT_M(i) (m0 + tid / (BN / 8) + (i) * (ITEMS / (BN / 8)))
#define LOAD_RESIDUAL() { \
    _Pragma("unroll") for (int i = 0; i < OUT_LOADS; i++) { \
      const bool there = OUT_M(i) < rows && out_n < columns; \
      COPY(results + OUT_PLACE(i) * 2, \
           residual + (there ? (size_t)OUT_M(i) * out.z + group * columns + out_n : 0), \
           there ? 16 : 0); } }
#ifdef EARLY
  LOAD_RESIDUAL()
#endif
#ifdef PAIRS
  // An item's pairs of the result and of the residual, of which few are held in registers ahead.
#define PAIR_M(p) (m0 + warp_m + lane / 4 + (p) / 2 / B_COLUMNS * 16 + (p) % 2 * 8)
#define PAIR_N(p) (n0 + warp_n + lane % 4 * 2 + (p) / 2 % B_COLUMNS * 8)
#define PAIR(p) ((size_t)PAIR_M(p) * y_columns + PAIR_N(p))
#define THERE(p) (PAIR_M(p) < rows && PAIR_N(p) < y_columns)
#define GET_ADDED(p) \
  (THERE(p) ? *(__global const float2*)(residual + PAIR(p)) : (float2)(0.0f))
#if defined(ADDS_SINGLE) && FRAGMENTS <= 8
  float2 added[FRAGMENTS * 2];
  #pragma unroll
  for (int p = 0; p < FRAGMENTS * 2; p++) added[p] = GET_ADDED(p);
#define ADDED_PAIR(p) added[p]
#else
#define ADDED_PAIR(p) GET_ADDED(p)
#endif
#endif

  float sums[FRAGMENTS * 4];
  #pragma unroll
  for (int i = 0; i < FRAGMENTS * 4; i++) sums[i] = 0.0f;

  #pragma unroll
  for (int s = 0; s < AHEAD; s++) {
    if (first + s < last) LOAD(s)
    COMMIT();
  }
#ifdef NORMALIZE
  // A lane takes every 32nd chunk of a row; rows go together, so that none waits for its sums.
#ifdef SINGLE_ROWS
#define TOGETHER 4
#else
#define TOGETHER 2
  ARRIVED(0);
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  float factors[NORMALIZE][8], offsets[NORMALIZE][8];
  #pragma unroll
  for (int i = 0; i < NORMALIZE; i++) {
    const int n = min(lane + i * 32, depth / 8 - 1) * 8;
    *(float4*)factors[i] = *(__global const float4*)(scale + n);
    *(float4*)(factors[i] + 4) = *(__global const float4*)(scale + n + 4);
    *(float4*)offsets[i] = *(__global const float4*)(shift + n);
    *(float4*)(offsets[i] + 4) = *(__global const float4*)(shift + n + 4);
  }
  for (int r = warp * TOGETHER; r < BM; r += WM * WN * TOGETHER) {
    float v[TOGETHER][NORMALIZE][8], sum[TOGETHER], squares[TOGETHER];
    #pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      sum[j] = squares[j] = 0.0f;
      #pragma unroll
      for (int i = 0; i < NORMALIZE; i++) {
        const int part = lane + i * 32;
        const bool there = part < depth / 8;
#ifdef SINGLE_ROWS
        const size_t row = m0 + r + j < rows ? r + j : 0;
        vstore8(*(__global const float8*)(a + row * depth + (there ? part * 8 : 0)), 0, v[j][i]);
#else
        GET_LOCAL8(v[j][i], tiles + (there ? part / 8 : 0) * STAGE_BYTES + CHUNK(r + j, part % 8));
#endif
        #pragma unroll
        for (int q = 0; q < 8; q++) sum[j] += there ? v[j][i][q] : 0.0f;
      }
    }
    #pragma unroll
    for (int j = 0; j < TOGETHER; j++)
      sum[j] = sum_over_warp(sum[j], scratch, tid) / (float)depth;
    #pragma unroll
    for (int j = 0; j < TOGETHER; j++)
      #pragma unroll
      for (int i = 0; i < NORMALIZE; i++)
        #pragma unroll
        for (int q = 0; q < 8; q++) {
          v[j][i][q] -= sum[j];
          squares[j] += lane + i * 32 < depth / 8 ? v[j][i][q] * v[j][i][q] : 0.0f;
        }
    #pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      const float variance =
          sum_over_warp(squares[j], scratch, tid) / (float)depth;
      const float factor = 1.0f / sqrt(variance + epsilon);
      #pragma unroll
      for (int i = 0; i < NORMALIZE; i++) {
        const int part = lane + i * 32;
        #pragma unroll
        for (int q = 0; q < 8; q++) v[j][i][q] = v[j][i][q] * factor * factors[i][q] + offsets[i][q];
        if (part < depth / 8) {
          PUT_LOCAL8(tiles + part / 8 * STAGE_BYTES + CHUNK(r + j, part % 8), v[j][i]);
          if (n0 == 0 && m0 + r + j < rows)
            PUT_NORMAL8(normalized, (size_t)(m0 + r + j) * depth + part * 8, v[j][i]);
        }
      }
    }
  }
#endif
  int from = 0, to = AHEAD;
  for (int t = first; t < last; t++) {
    ARRIVED(AHEAD - 1);
#if defined(WARPGROUP) && defined(NVIDIA)
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
#ifndef AT_ONCE
    if (t + AHEAD < last) LOAD(to)
#endif
    COMMIT();
    __local const char* a_tile = tiles + from * STAGE_BYTES;
    __local const char* b_tile = a_tile + A_BYTES;
#if defined(WARPGROUP) && defined(NVIDIA)
    const ulong da = DESCRIPTOR(SHARED(a_tile) + warp / 4 * (64 * 128));
    const ulong db = DESCRIPTOR(SHARED(b_tile));
    WG_FENCE();
    WGMMA(sums, da, db); WGMMA(sums, da + 2, db + 2);
    WGMMA(sums, da + 4, db + 4); WGMMA(sums, da + 6, db + 6);
    WG_COMMIT();
    WG_WAIT(1);
#else
    multiply_tiles(sums, a_tile, b_tile, warp_m, warp_n, lane);
#endif
    from = from + 1 == STAGES ? 0 : from + 1;
    to = to + 1 == STAGES ? 0 : to + 1;
  }
#if defined(WARPGROUP) && defined(NVIDIA)
  WG_WAIT(0);
  #pragma unroll
  for (int i = 0; i < FRAGMENTS * 4; i++) asm volatile("" : "+f"(sums[i]) :: "memory");
#endif
  ARRIVED(0);

#ifdef HAND_OVER
  __global float4* slots = partial + (size_t)tile * splits * (FRAGMENTS * ITEMS) + tid;
  #pragma unroll
  for (int i = 0; i < FRAGMENTS; i++)
    slots[((size_t)split * FRAGMENTS + i) * ITEMS] =
        (float4)(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
#include "hand_over.cl"
#endif
#if defined(RESIDUAL) && !defined(EARLY) && !defined(LOOSE)
  barrier(CLK_LOCAL_MEM_FENCE);  // tiles are read no more
  LOAD_RESIDUAL()
  COMMIT();
#endif
#ifdef HAND_OVER
  #pragma unroll
  for (int i = 0; i < FRAGMENTS * 4; i++) sums[i] = 0.0f;
  #pragma unroll 4
  for (int part = 0; part < splits; part++)
    #pragma unroll
    for (int i = 0; i < FRAGMENTS; i++) {
      const float4 v = slots[((size_t)part * FRAGMENTS + i) * ITEMS];
      sums[i * 4] += v.x; sums[i * 4 + 1] += v.y; sums[i * 4 + 2] += v.z; sums[i * 4 + 3] += v.w;
    }
#endif
  ARRIVED(0);
  barrier(CLK_LOCAL_MEM_FENCE);  // tiles are no longer read; the residual is loaded

#ifdef PAIRS
  #pragma unroll
  for (int p = 0; p < FRAGMENTS * 2; p++) {
    float2 v = (float2)(sums[p * 2], sums[p * 2 + 1]);
    v += *(__local const float2*)(addend + PAIR_N(p) - n0);
#ifdef ADDS_SINGLE
    v += ADDED_PAIR(p);
#elif defined(RESIDUAL)
    if (THERE(p)) v += (float2)(GET(residual, PAIR(p)), GET(residual, PAIR(p) + 1));
#endif
    v.x = activate(v.x, ACTIVATION, alpha, beta);
    v.y = activate(v.y, ACTIVATION, alpha, beta);
    if (THERE(p)) *(__global float2*)(y + PAIR(p)) = v;
  }
#elif defined(LOOSE)
  #pragma unroll
  for (int f = 0; f < FRAGMENTS * 4; f++) {
    const int m = m0 + warp_m + lane / 4 + f / 4 / B_COLUMNS * 16 + f % 4 / 2 * 8;
    const int n = warp_n + lane % 4 * 2 + f / 4 % B_COLUMNS * 8 + f % 2;
    if (m >= rows || n0 + n >= y_columns) continue;
    const size_t to_y = (size_t)m * y_columns + n0 + n;
    float v = sums[f] + addend[n];
#ifdef RESIDUAL
    v += GET(residual, to_y);
#endif
    v = activate(v, ACTIVATION, alpha, beta);
#ifdef SINGLE
    y[to_y] = v;
#else
    PUT(y, to_y, v);
#endif
  }
#else
  // An item adds to the pairs of elements whose sums it has; then items write 16 bytes each.
  __local half* result = (__local half*)results;
  #pragma unroll
  for (int i = 0; i < FRAGMENTS; i++)
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      const int m = warp_m + lane / 4 + i / B_COLUMNS * 16 + h * 8;
      const int n = warp_n + lane % 4 * 2 + i % B_COLUMNS * 8;
      const float2 add = *(__local const float2*)(addend + n);
      float2 v = (float2)(sums[i * 4 + h * 2] + add.x, sums[i * 4 + h * 2 + 1] + add.y);
#ifdef RESIDUAL
      v += GET_LOCAL2(result, m * OUT_ROW + n);
#endif
      v.x = activate(v.x, ACTIVATION, alpha, beta);
      v.y = activate(v.y, ACTIVATION, alpha, beta);
      PUT_LOCAL2(result, m * OUT_ROW + n, v);
    }
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int i = 0; i < OUT_LOADS; i++)
    if (OUT_M(i) < rows && out_n < columns)
      *(__global uint4*)(y + (size_t)OUT_M(i) * out.z + group * columns + out_n) =
          *(__local const uint4*)(result + OUT_PLACE(i));
#endif
}
