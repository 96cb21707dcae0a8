// Dense products by constant matrices of float16 whose tiles the copy engine of NVIDIA's Hopper
// moves (TMA): what product_stream.cl computes with DENSE and WARPGROUP. Groups stay for several
// tiles. One item of a warp of its own asks for what comes next, STAGES ahead, also for the next
// tile while results of the last one are written; barriers in local memory say
// which tiles are loaded and which were read. Each warp stores its own results, and loads what is
// added to them.
// Without the option NVIDIA, items copy and compute the same by ordinary instructions.
//
// Options: BM BN  tile sizes, WM  warps that compute: BM / 16, WN: 1, STAGES, WARPGROUP
//   SINGLE    y and the residual are of float32
//   BIASED    the bias is added
//   RESIDUAL  the residual is added
//   SLABS     slabs of 16 rows of 128 bytes of a warp's results in local memory; a divisor of PARTS

#define BAND 8
#include "streaming.cl"
#include "copy_engine.cl"

// SIZE: of a result in halves, as the copy engine counts them.
#ifdef SINGLE
#define SIZE 2
#define RESULT float
#define BITS uint
#define GET_RESULT2(p) (*(__local const float2*)(p))
#define PUT_RESULT2(p, v) *(__local float2*)(p) = v
#else
#define SIZE 1
#define RESULT half
#define BITS ushort
#define GET_RESULT2(p) GET_LOCAL2(p, 0)
#define PUT_RESULT2(p, v) PUT_LOCAL2(p, 0, v)
#endif
#define PARTS (BN * SIZE / 64)
#define SLAB_BYTES 2048
#define RESULT_AT(r, c) \
  ((__local RESULT*)(slab + CHUNK(r, (c) / (8 / SIZE))) + (c) % (8 / SIZE))

#ifdef NVIDIA
#define SERVANTS 32  // items of the warp that asks for tiles
#define SLAB_WRITTEN() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define THERE_AT(stage) (SHARED(barriers) + (stage) * 16)
#define READ_AT(stage) (THERE_AT(stage) + 8)
#define ADDED_AT(slab) (SHARED(barriers) + STAGES * 16 + (warp * SLABS + (slab)) * 8)
#define MAP_OF(number) ((size_t)maps + (number) * 128)
#define A_MAP MAP_OF(0)
#define W_MAP MAP_OF(1)
#define Y_MAP MAP_OF(2)
#define RESIDUAL_MAP MAP_OF(3)
#define KNOW(map) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" \
    :: "l"(map) : "memory")
#define BRING(to, map, column, row, at) \
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes " \
      "[%0], [%1, {%2, %3}], [%4];" \
      :: "r"(SHARED(to)), "l"(map), "r"(column), "r"(row), "r"(at) : "memory")
#define SEND(map, column, row, from) \
  { asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" \
      :: "l"(map), "r"(column), "r"(row), "r"(SHARED(from)) : "memory"); \
    asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
#define SENT(later) asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(later) : "memory")

#else
#define SERVANTS 0
#define EACH_RESULT(move) \
  for (int i = lane; i < 16 * 64 / SIZE; i += 32) { \
    const int r = i / (64 / SIZE), c = i % (64 / SIZE), n = n0 + part * (64 / SIZE) + c; \
    const size_t at = (size_t)(m + r) * y_columns + n; \
    __local BITS* place = (__local BITS*)RESULT_AT(r, c); \
    if (m + r < rows && n < y_columns) move; }
#define WARP_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define SLAB_WRITTEN()
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS + SERVANTS, 1, 1)))
void product_bulk(
    __global const half* restrict a, __global const half* restrict w,
    __global const float* restrict bias, __global const RESULT* restrict residual,
    __global RESULT* restrict y,
    // Tensor maps of a, w, y and the residual; see tensor_map.cl.
    __global const uchar* restrict maps,
    // Columns and depth are multiples of eight; a has `channels` of them `pitch` apart.
    const int rows, const int columns, const int depth, const int channels, const int pitch,
    const int y_columns, const float alpha, const float beta
) {
  __local char tiles[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
  __local char results[WM * SLABS * SLAB_BYTES] __attribute__((aligned(1024)));
  const int tid = get_local_id(0);
  const int lane = tid % 32, warp = tid / 32;
  const int column_tiles = (columns + BN - 1) / BN, row_tiles = (rows + BM - 1) / BM;
  const int tile_count = column_tiles * row_tiles;
  const int steps = (depth + BK - 1) / BK;
  // Groups that run together share rows and columns: bands of BAND row tiles.
#define PLACE(tile) \
    const int band = (tile) / (BAND * column_tiles), within = (tile) - band * BAND * column_tiles; \
    const int high = min(BAND, row_tiles - band * BAND); \
    const int m0 = (band * BAND + within % high) * BM, n0 = within / high * BN;

#ifdef NVIDIA
  __local ulong barriers[2 * STAGES + WM * SLABS];
  if (tid == 0) {
    for (int i = 0; i < STAGES; i++) {
      INIT(THERE_AT(i), 1);
      INIT(READ_AT(i), WM / 4);
    }
    for (int i = 0; i < WM * SLABS; i++) INIT(ADDED_AT(i), 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (warp == WM) {
    if (lane == 0) {
      KNOW(A_MAP);
      KNOW(W_MAP);
      int stage = 0;
      uint parity = 1;
      for (int tile = get_group_id(0); tile < tile_count; tile += get_num_groups(0)) {
        PLACE(tile)
        for (int t = 0; t < steps; t++) {
          __local char* place = tiles + stage * STAGE_BYTES;
          await(READ_AT(stage), parity);
          EXPECT(THERE_AT(stage), STAGE_BYTES);
          BRING(place, A_MAP, t * BK, m0, THERE_AT(stage));
          BRING(place + A_BYTES, W_MAP, t * BK, n0, THERE_AT(stage));
          if (++stage == STAGES) { stage = 0; parity ^= 1; }
        }
      }
    }
    return;
  }
  if (lane == 0) {
    KNOW(Y_MAP);
#ifdef RESIDUAL
    KNOW(RESIDUAL_MAP);
#endif
  }
  int stage = 0;
  uint parity = 0, added_parity = 0;
#endif

  __local char* slabs = results + warp * (SLABS * SLAB_BYTES);
  for (int tile = get_group_id(0); tile < tile_count; tile += get_num_groups(0)) {
    PLACE(tile)
    const int m = m0 + warp * 16;
#ifdef NVIDIA
#define BRING_RESIDUAL(part) { \
    EXPECT(ADDED_AT((part) % SLABS), SLAB_BYTES); \
    BRING(slabs + (part) % SLABS * SLAB_BYTES, RESIDUAL_MAP, n0 * SIZE + (part) * 64, m, \
          ADDED_AT((part) % SLABS)); }
#ifdef RESIDUAL
    if (lane == 0) {
      SENT(0);
      for (int part = 0; part < SLABS; part++) BRING_RESIDUAL(part)
    }
#endif
#endif
    float sums[FRAGMENTS * 4];
    #pragma unroll
    for (int i = 0; i < FRAGMENTS; i++) {
      const int n = n0 + i * 8 + lane % 4 * 2;
#ifdef BIASED
      const float2 b = n < columns ? *(__global const float2*)(bias + n) : (float2)(0.0f);
#else
      const float2 b = (float2)(0.0f);
#endif
      sums[i * 4] = sums[i * 4 + 2] = b.x;
      sums[i * 4 + 1] = sums[i * 4 + 3] = b.y;
    }
#ifdef NVIDIA
    int before = stage;
    for (int t = 0; t < steps; t++) {
      await(THERE_AT(stage), parity);
      const uint place = SHARED(tiles) + stage * STAGE_BYTES;
      const ulong da = DESCRIPTOR(place + warp / 4 * (64 * 128)), db = DESCRIPTOR(place + A_BYTES);
      WG_FENCE();
      WGMMA(sums, da, db); WGMMA(sums, da + 2, db + 2);
      WGMMA(sums, da + 4, db + 4); WGMMA(sums, da + 6, db + 6);
      WG_COMMIT();
      WG_WAIT(1);
      if (t > 0 && tid % 128 == 0) ARRIVE(READ_AT(before));
      before = stage;
      if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
    WG_WAIT(0);
    #pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; i++) asm volatile("" : "+f"(sums[i]) :: "memory");
    if (tid % 128 == 0) ARRIVE(READ_AT(before));
#else
    for (int t = 0; t < steps; t++) {
      const int k = t * BK + tid % 8 * 8;
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = tid / 8; i < BM; i += LOAD_ROWS)
        COPY(tiles + CHUNK(i, tid % 8), a + (size_t)min(m0 + i, rows - 1) * pitch + k,
             m0 + i < rows ? clamp((channels - k) * 2, 0, 16) : 0);
      for (int i = tid / 8; i < BN; i += LOAD_ROWS)
        COPY(tiles + A_BYTES + CHUNK(i, tid % 8), w + (size_t)min(n0 + i, columns - 1) * depth + k,
             n0 + i < columns ? clamp((depth - k) * 2, 0, 16) : 0);
      barrier(CLK_LOCAL_MEM_FENCE);
      multiply_tiles(sums, tiles, tiles + A_BYTES, warp * 16, 0, lane);
    }
#endif

    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
      __local char* slab = slabs + part % SLABS * SLAB_BYTES;
#ifdef NVIDIA
#ifdef RESIDUAL
      await(ADDED_AT(part % SLABS), added_parity);
      if (part % SLABS == SLABS - 1) added_parity ^= 1;
#else
      if (lane == 0) SENT(SLABS - 1);
      WARP_BARRIER();
#endif
#else
      WARP_BARRIER();
#ifdef RESIDUAL
      EACH_RESULT(*place = ((__global const BITS*)residual)[at])
#endif
      WARP_BARRIER();
#endif
      #pragma unroll
      for (int i = 0; i < 16 / SIZE; i++) {
        const int r = lane / 4 + i % 2 * 8, c = i / 2 * 8 + lane % 4 * 2;
        const int f = (part * (8 / SIZE) + i / 2) * 4 + i % 2 * 2;
        __local RESULT* at = RESULT_AT(r, c);
        float2 v = (float2)(sums[f], sums[f + 1]);
#ifdef RESIDUAL
        v += GET_RESULT2(at);
#endif
        v.x = activate(v.x, ACTIVATION, alpha, beta);
        v.y = activate(v.y, ACTIVATION, alpha, beta);
        PUT_RESULT2(at, v);
      }
      SLAB_WRITTEN();
      WARP_BARRIER();
#ifdef NVIDIA
      if (lane == 0) {
        SEND(Y_MAP, n0 * SIZE + part * 64, m, slab)
#ifdef RESIDUAL
        if (part + SLABS < PARTS) {
          SENT(0);
          BRING_RESIDUAL(part + SLABS)
        }
#endif
      }
#else
      EACH_RESULT(((__global BITS*)y)[at] = *place)
#endif
    }
  }
#ifdef NVIDIA
  if (lane == 0) SENT(0);
#endif
}
