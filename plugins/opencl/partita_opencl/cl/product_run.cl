// Products that follow one another, as one kernel whose work-groups stay on the device: each product
// is what product_stream.cl computes of one, and takes a record of `table`. Groups go through the
// records in order, take their share of a product's tiles, and wait for the products that it reads
// by counters in memory; weights are copied before the wait. Sums are cut in parts as there.
//
// All groups must be on the device at a time. Waiting is bounded: a group that waits too long leaves
// a mark in stall[1] and ends, and so do the others; then counters and results mean nothing.
//
// Options: BM BN WM WN STAGES  as in product_stream.cl, ACTIVATION  of the products that have one

#include "streaming.cl"
#include "waiting.cl"

// A record. Counts of halves are from the start of the arena, or of `x` and `y` if they are negative.
enum { UNITS, FIRST_GROUP, WAIT_A, TILES_A, WAIT_B, TILES_B, ROWS, COLUMNS, DEPTH, IMAGE_X, IMAGE_Y,
       PITCH, CHANNELS, OUT_X, OUT_Y, TAPS_X, DILATION_X, DILATION_Y, STRIDE_X, STRIDE_Y, PAD_X,
       PAD_Y, STEPS_PER_SPLIT, SPLITS, TILES, COLUMN_TILES, ACTIVATES, A_AT, W_AT, BIAS_AT, ADDS,
       RESIDUAL_AT, Y_AT, COUNTER_AT, PARTIAL_AT, RECORD = 40 };

#define OUT_ROW (BN + 8)
#define OUT_LOADS (BM * BN / 8 / ITEMS)
#define AHEAD (STAGES - 1)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void product_run(
    __global const int* restrict table, const int records, __global const half* x,
    __global const half* restrict weights, __global const float* restrict biases,
    __global half* arena, __global half* y, __global float4* partial, __global int* counters,
    __global int* stall, const float alpha, const float beta
) {
  __local char tiles[STAGES * STAGE_BYTES] __attribute__((aligned(1024)));
  __local char result_bytes[BM * OUT_ROW * 2] __attribute__((aligned(16)));
  __local float addend[BN];
  __local int word;

  __local half* results = (__local half*)result_bytes;
  const int tid = get_local_id(0);
  const int lane = tid % 32, warp = tid / 32;
  const int warp_m = warp % WM * (BM / WM), warp_n = warp / WM * (BN / WN);
  const int chunk = tid % 8, row0 = tid / 8;
  const int at = CHUNK(row0, chunk);
  const int groups = get_num_groups(0);
  bool stalled = false;

  for (int number = 0; number < records && !stalled; number++) {
    __global const int* restrict record = table + number * RECORD;
    const int units = record[UNITS];
    int unit = (int)get_group_id(0) - record[FIRST_GROUP];
    unit += unit < 0 ? groups : 0;
    bool waited = false;
    for (; unit < units && !stalled; unit += groups) {
      const int rows = record[ROWS], columns = record[COLUMNS], depth = record[DEPTH];
      const int image_x = record[IMAGE_X], image_y = record[IMAGE_Y], pitch = record[PITCH];
      const int channels = record[CHANNELS], out_x = record[OUT_X], out_y = record[OUT_Y];
      const int taps_x = record[TAPS_X], splits = record[SPLITS], tile_count = record[TILES];
      const int dilation_x = record[DILATION_X], dilation_y = record[DILATION_Y];
      const int column_tiles = record[COLUMN_TILES];
      const int split = unit / tile_count, tile = unit - split * tile_count;
      const int m0 = tile / column_tiles * BM, n0 = tile % column_tiles * BN;
      const int first = split * record[STEPS_PER_SPLIT];
      const int last = min(depth / BK, first + record[STEPS_PER_SPLIT]);
      __global const half* a = record[A_AT] < 0 ? x : arena + record[A_AT];
      __global const half* residual = record[RESIDUAL_AT] < 0 ? x : arena + record[RESIDUAL_AT];
      __global half* to = record[Y_AT] < 0 ? y : arena + record[Y_AT];
      __global const half* w =
          weights + record[W_AT] + (size_t)(n0 + row0) * depth + first * BK + chunk * 8;

      uint filters = 0;  // a bit per row of w that exists
      #pragma unroll
      for (int i = 0; i < B_LOADS; i++)
        filters |= (n0 + row0 + i * LOAD_ROWS < columns ? 1u : 0u) << i;
#define LOAD_B(stage) { _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) \
      COPY(tiles + (stage) * STAGE_BYTES + at + A_BYTES + i * LOAD_ROWS * 128, \
           w + (size_t)i * LOAD_ROWS * depth, filters >> i & 1 ? 16 : 0); \
    w += BK; }
      #pragma unroll
      for (int s = 0; s < AHEAD; s++)
        if (first + s < last) LOAD_B(s)
      for (int i = tid; i < BN; i += ITEMS)
        addend[i] = n0 + i < columns ? biases[record[BIAS_AT] + n0 + i] : 0.0f;

      // Steps are whole: each reads 64 channels of one tap.
      const int step = first * BK;
      int tap = step / channels, c = step - tap * channels + chunk * 8;
      int tap_x = tap % taps_x, dx = tap_x * dilation_x, dy = tap / taps_x * dilation_y;
      int iy[A_LOADS], ix[A_LOADS], base[A_LOADS];
      #pragma unroll
      for (int i = 0; i < A_LOADS; i++) {
        const int m = m0 + row0 + i * LOAD_ROWS;
        const int n = m / (out_x * out_y), p = m - n * (out_x * out_y);
        const int oy = p / out_x, ox = p - oy * out_x;
        iy[i] = m < rows ? oy * record[STRIDE_Y] - record[PAD_Y] : INT_MIN;  // no tap reaches the image
        ix[i] = ox * record[STRIDE_X] - record[PAD_X];
        base[i] = ((n * image_y + iy[i]) * image_x + ix[i]) * pitch;
      }
#define LOAD_A(stage) { \
    const int offset = (dy * image_x + dx) * pitch + c; \
    _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) { \
      const bool there = (uint)(iy[i] + dy) < (uint)image_y && (uint)(ix[i] + dx) < (uint)image_x; \
      COPY(tiles + (stage) * STAGE_BYTES + at + i * LOAD_ROWS * 128, \
           a + (there ? base[i] + offset : 0), there ? 16 : 0); } \
    c += BK; \
    if (c >= channels) { \
      c -= channels; dx += dilation_x; \
      if (++tap_x == taps_x) { tap_x = 0; dx = 0; dy += dilation_y; } } }

      if (!waited) {
        if (tid == 0) {
          int looks = 0, count = 0;
          word = 0;
          if (record[WAIT_A] >= 0)
            do LOOK(count, counters + record[WAIT_A] * LINE)
            while (count < record[TILES_A] && ++looks < MOST_LOOKS);
          if (record[WAIT_B] >= 0)
            do LOOK(count, counters + record[WAIT_B] * LINE)
            while (count < record[TILES_B] && ++looks < MOST_LOOKS);
          if (looks >= MOST_LOOKS) word = stall[1] = 1;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        ORDER();
        stalled = word != 0;
        waited = true;
      }
      if (!stalled) {
        #pragma unroll
        for (int s = 0; s < AHEAD; s++) {
          if (first + s < last) LOAD_A(s)
          if (s == 0 && record[ADDS]) {
            #pragma unroll
            for (int i = 0; i < OUT_LOADS; i++) {
              const int m = tid / (BN / 8) + i * (ITEMS / (BN / 8)), n = tid % (BN / 8) * 8;
              const bool there = m0 + m < rows && n0 + n < columns;
              COPY((__local char*)(results + m * OUT_ROW + n),
                   residual + (there ? (size_t)(m0 + m) * columns + n0 + n : 0), there ? 16 : 0);
            }
          }
          COMMIT();
        }

        float sums[FRAGMENTS * 4];
        #pragma unroll
        for (int i = 0; i < FRAGMENTS * 4; i++) sums[i] = 0.0f;
        int from = 0, next = AHEAD;
        for (int t = first; t < last; t++) {
          ARRIVED(AHEAD - 1);
          barrier(CLK_LOCAL_MEM_FENCE);
          if (t + AHEAD < last) {
            LOAD_A(next)
            LOAD_B(next)
          }
          COMMIT();
          __local const char* a_tile = tiles + from * STAGE_BYTES;
          multiply_tiles(sums, a_tile, a_tile + A_BYTES, warp_m, warp_n, lane);
          from = from + 1 == STAGES ? 0 : from + 1;
          next = next + 1 == STAGES ? 0 : next + 1;
        }
        ARRIVED(0);

        bool finishes = true;
        if (splits > 1) {
          __global float4* slots =
              partial + record[PARTIAL_AT] + (size_t)tile * splits * (FRAGMENTS * ITEMS) + tid;
          #pragma unroll
          for (int i = 0; i < FRAGMENTS; i++)
            slots[((size_t)split * FRAGMENTS + i) * ITEMS] =
                (float4)(sums[i * 4], sums[i * 4 + 1], sums[i * 4 + 2], sums[i * 4 + 3]);
          ORDER();
          barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
          if (tid == 0) {
            __global int* counter = counters + record[COUNTER_AT] + tile;
            int before;
            COUNT(before, counter)
            word = before == splits - 1;
            if (word) atomic_xchg(counter, 0);  // for the next launch
          }
          barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
          ORDER();
          finishes = word != 0;
          if (finishes) {
            #pragma unroll
            for (int i = 0; i < FRAGMENTS * 4; i++) sums[i] = 0.0f;
            #pragma unroll 4
            for (int part = 0; part < splits; part++)
              #pragma unroll
              for (int i = 0; i < FRAGMENTS; i++) {
                float4 v;
                GET_FRESH4(v, slots + ((size_t)part * FRAGMENTS + i) * ITEMS);
                sums[i * 4] += v.x; sums[i * 4 + 1] += v.y;
                sums[i * 4 + 2] += v.z; sums[i * 4 + 3] += v.w;
              }
          }
        }
        barrier(CLK_LOCAL_MEM_FENCE);  // the residual is loaded; `word` and tiles are no longer read
        if (finishes) {
          #pragma unroll
          for (int i = 0; i < FRAGMENTS; i++)
            #pragma unroll
            for (int h = 0; h < 2; h++) {
              const int m = warp_m + lane / 4 + i / B_COLUMNS * 16 + h * 8;
              const int n = warp_n + lane % 4 * 2 + i % B_COLUMNS * 8;
              const float2 add = *(__local const float2*)(addend + n);
              float2 v = (float2)(sums[i * 4 + h * 2] + add.x, sums[i * 4 + h * 2 + 1] + add.y);
              if (record[ADDS]) v += GET_LOCAL2(results, m * OUT_ROW + n);
              if (record[ACTIVATES]) {
                v.x = activate(v.x, ACTIVATION, alpha, beta);
                v.y = activate(v.y, ACTIVATION, alpha, beta);
              }
              PUT_LOCAL2(results, m * OUT_ROW + n, v);
            }
          barrier(CLK_LOCAL_MEM_FENCE);
          #pragma unroll
          for (int i = 0; i < OUT_LOADS; i++) {
            const int m = tid / (BN / 8) + i * (ITEMS / (BN / 8)), n = tid % (BN / 8) * 8;
            if (m0 + m < rows && n0 + n < columns)
              *(__global uint4*)(to + (size_t)(m0 + m) * columns + n0 + n) =
                  *(__local const uint4*)(results + m * OUT_ROW + n);
          }
          ORDER();
          barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
          if (tid == 0) SIGNAL(counters + number * LINE)
          barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL lets all items signal
        }
      }
    }
  }
  ARRIVED(0);
  // The last group resets the counters: no group waits any more.
  if (tid == 0 && !stalled) {
    int before;
    COUNT(before, counters + records * LINE)
    if (before == groups - 1)
      for (int i = 0; i <= records; i++) counters[i * LINE] = 0;
  }
}
