// Products of few rows that follow one another, as one kernel whose work-groups stay on the device:
// each is what block_product.cl computes of one, and takes a record of `table`. A warp multiplies
// COLUMNS columns at a time; a product begins when all groups are done with the one before, and its
// first weights are being loaded meanwhile.
//
// All groups must be on the device at a time; see waiting.cl.
//
// Options: ITEMS (a multiple of 32), ROWS, COLUMNS, PRODUCTS; those of block_weights.cl
//   DEEP        steps whose weights are loaded ahead
//   DEPTH       of the deepest product, a multiple of 8, as are those of all
//   ACTIVATION  of the products that have one
//   NORMALIZE   for the sums over a warp

#include "block_weights.cl"
#include "block_columns.cl"
#include "waiting.cl"

// A record. X, Y and RESIDUAL are numbers of tensors, EPSILON has the bits of a float, NORMS and GATED
// say what block_product.cl does under these names.
enum { COLUMN_COUNT, DEPTH_OF, UNITS, BLOCKS, BIASED, ADDS, GATED, ACTIVATES, NORMS, EPSILON,
       X, Y, RESIDUAL, RECORD = 16 };

// Of a unit in local memory, such that neighbours in a warp read from different banks.
#ifdef HALF
#define STORED half
#define STRIDE (ELEMENTS + (ELEMENTS > 8 ? 8 : 0))
#define PUT_X8(p, v) PUT_LOCAL8(p, v)
#define GET_X8(v, p) GET_LOCAL8(v, p)
#else
#define STORED float
#define STRIDE (ELEMENTS + 4)
#define PUT_X8(p, v) vstore8(vload8(0, v), 0, p)
#define GET_X8(v, p) vstore8(vload8(0, p), 0, v)
#endif
#define MOST_UNITS ((DEPTH + 32 * ELEMENTS - 1) / (32 * ELEMENTS) * 32)
#define HELD ((MOST_UNITS * ELEMENTS + ITEMS * 8 - 1) / (ITEMS * 8))
#define WARPS (ITEMS / 32)
#define EIGHTS (ELEMENTS / 8)

#define WEIGHTS(n) , __global const uint4* restrict w##n, __global const SCALES* restrict scales##n, \
    __global const OFFSET_TYPE* restrict offsets##n, __global const REAL* restrict bias##n, \
    __global const float* restrict factors##n
#define TENSOR(n) , __global REAL* t##n
#define TAKE(n) if (number == n) { w = w##n; scales = scales##n; offsets = offsets##n; \
    bias = bias##n; factors = factors##n; }

// A unit of each of a warp's columns; of those beyond the last, the last one again.
#define FETCH(to, n, unit) \
    fetch(to, w, scales, offsets, n, columns, units, blocks, min(unit, units - 1));

// Adds a unit of each column to the sums.
void add_unit(
    float sums[COLUMNS][ROWS], const Weights* now, __local const STORED* x,
    __local const float* totals, const int unit
) {
  #pragma unroll
  for (int p = 0; p < PARTS; p++) {
    float dots[COLUMNS][ROWS];
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++)
      #pragma unroll
      for (int r = 0; r < ROWS; r++) dots[c][r] = 0.0f;
    #pragma unroll
    for (int e = p * (EIGHTS / PARTS); e < (p + 1) * (EIGHTS / PARTS); e++) {
      float v[ROWS][8];
      #pragma unroll
      for (int r = 0; r < ROWS; r++) GET_X8(v[r], x + (r * MOST_UNITS + unit) * STRIDE + e * 8);
      #pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        const float4 low = quad_of(now->words[c], e * 2), high = quad_of(now->words[c], e * 2 + 1);
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
          const float dot = fma(low.w, v[r][3], fma(low.z, v[r][2],
                            fma(low.y, v[r][1], fma(low.x, v[r][0], dots[c][r]))));
          dots[c][r] = fma(high.w, v[r][7], fma(high.z, v[r][6],
                       fma(high.y, v[r][5], fma(high.x, v[r][4], dot))));
        }
      }
    }
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++)
      #pragma unroll
      for (int r = 0; r < ROWS; r++) {
#ifdef UNSCALED
        sums[c][r] += dots[c][r];
#else
        sums[c][r] = fma(NUMBER_OF(SCALES)(now->scales[c][p]), dots[c][r], sums[c][r]);
#endif
#ifndef ZERO
        sums[c][r] -= NUMBER_OF(OFFSETS)(now->offsets[c][p]) * totals[(r * MOST_UNITS + unit) * PARTS + p];
#endif
      }
  }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void block_run(
    __global const int* restrict table, __global int* counters, __global int* stall,
    const float alpha, const float beta
    TENSOR(0) TENSOR(1) TENSOR(2) TENSOR(3) TENSOR(4) TENSOR(5) TENSOR(6) TENSOR(7) TENSOR(8)
    TENSOR(9) TENSOR(10) TENSOR(11)
    WEIGHTS(0) WEIGHTS(1) WEIGHTS(2) WEIGHTS(3)
) {
  __local char x_bytes[ROWS * MOST_UNITS * STRIDE * sizeof(STORED)] __attribute__((aligned(16)));
#ifndef ZERO
  __local float totals[ROWS * MOST_UNITS * PARTS];
#else
  __local float* totals = 0;
#endif
  __local float shared[ITEMS];
  __local int records[PRODUCTS * RECORD];
  __local int word;
  __local STORED* x = (__local STORED*)x_bytes;
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int group = get_group_id(0), groups = get_num_groups(0);
  const int here = (warp * groups + group) * COLUMNS, turn = WARPS * groups * COLUMNS;
  bool stalled = false;

  for (int i = tid; i < PRODUCTS * RECORD; i += ITEMS) records[i] = table[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int number = 0; number < PRODUCTS && !stalled; number++) {
    __global REAL* tensors[] = {t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11};
    __global const uint4* w = w0;
    __global const SCALES* scales = scales0;
    __global const OFFSET_TYPE* offsets = offsets0;
    __global const REAL* bias = bias0;
    __global const float* factors = factors0;
    TAKE(1) TAKE(2) TAKE(3)
    __local const int* record = records + number * RECORD;
    const int columns = record[COLUMN_COUNT], depth = record[DEPTH_OF];
    const int units = record[UNITS], blocks = record[BLOCKS];
    const int whole = (units + 31) / 32 * 32;  // with units of zeros, which all items may take

    const int steps = whole / 32;

    // Weights do not depend on other groups.
    Weights coming[DEEP];
    #pragma unroll
    for (int d = 0; d < DEEP; d++)
      if (d < steps) FETCH(&coming[d], here, d * 32 + lane)
    if (number > 0)
      stalled = !all_came(counters + (number - 1) * LINE, groups, stall, &word, tid);
    if (!stalled) {
      __global const REAL* a = tensors[record[X]];
      __global const REAL* residual = tensors[record[RESIDUAL]];
      __global REAL* y = tensors[record[Y]];
      for (int r = 0; r < ROWS; r++) {
        float v[HELD][8], norm = 1.0f;
        #pragma unroll
        for (int h = 0; h < HELD; h++) {
          const int k = (h * ITEMS + tid) * 8;
          #pragma unroll
          for (int i = 0; i < 8; i++) v[h][i] = 0.0f;
          if (k < depth) fresh8(v[h], a + (size_t)r * depth + k);
        }
        if (record[NORMS]) {
          float squares = 0.0f;
          #pragma unroll
          for (int h = 0; h < HELD; h++)
            #pragma unroll
            for (int i = 0; i < 8; i++) squares = fma(v[h][i], v[h][i], squares);
          squares = sum_over_warp(squares, shared, tid);
          barrier(CLK_LOCAL_MEM_FENCE);
          if (lane == 0) shared[warp] = squares;
          barrier(CLK_LOCAL_MEM_FENCE);
          squares = 0.0f;
          for (int i = 0; i < WARPS; i++) squares += shared[i];
          norm = 1.0f / sqrt(squares / (float)depth + as_float(record[EPSILON]));
        }
        #pragma unroll
        for (int h = 0; h < HELD; h++) {
          const int k = (h * ITEMS + tid) * 8;
          if (k >= whole * ELEMENTS) break;
          if (record[NORMS])
            #pragma unroll
            for (int i = 0; i < 8; i++) v[h][i] *= k < depth ? norm * factors[k + i] : 0.0f;
          PUT_X8(x + (r * MOST_UNITS + k / ELEMENTS) * STRIDE + k % ELEMENTS, v[h]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
      }
#ifndef ZERO
      for (int i = tid; i < ROWS * whole * PARTS; i += ITEMS) {
        const int r = i / (whole * PARTS), at = i % (whole * PARTS);
        float total = 0.0f;
        for (int e = 0; e < EIGHTS / PARTS; e++) {
          float v[8];
          GET_X8(v, x + (r * MOST_UNITS + at / PARTS) * STRIDE + (at % PARTS * (EIGHTS / PARTS) + e) * 8);
          for (int j = 0; j < 8; j++) total += v[j];
        }
        totals[r * MOST_UNITS * PARTS + at] = total;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
#endif
      // All warps make as many iterations, since on some devices they add with barriers.
      const int end = (columns + turn - 1) / turn * turn;
      for (int first = 0; first < end; first += turn) {
        const int n0 = here + first, n = n0 + lane / ROWS, r_of_lane = lane % ROWS;
        const bool stores = lane < COLUMNS * ROWS && n < columns;
        float addend = stores && record[BIASED] ? GET(bias, n) : 0.0f;
        if (stores && record[ADDS]) addend += GET(FRESH(residual), (size_t)r_of_lane * columns + n);
        float sums[COLUMNS][ROWS];
        #pragma unroll
        for (int i = 0; i < COLUMNS * ROWS; i++) sums[i / ROWS][i % ROWS] = 0.0f;
        for (int base = 0; base < steps; base += DEEP) {
          #pragma unroll
          for (int d = 0; d < DEEP; d++) {
            const int step = base + d;
            if (step >= steps) break;
            const Weights now = coming[d];
            // The registers' next contents: of these columns, or of the next iteration's.
            const bool more = step + DEEP < steps;
            const int later = more ? step + DEEP : d;
            FETCH(&coming[d], more ? n0 : n0 + turn, later * 32 + lane)
            add_unit(sums, &now, x, totals, step * 32 + lane);
          }
        }
        float mine = 0.0f;
        #pragma unroll
        for (int i = 0; i < COLUMNS * ROWS; i++) {
          const float sum = sum_over_warp(sums[i / ROWS][i % ROWS], shared, tid);
          if (lane == i) mine = sum + addend;
        }
        const float other = from_lane(mine, lane + ROWS, shared, tid);  // of the next column
        if (record[GATED]) {
          const float gate = activate(mine, ACTIVATION, alpha, beta);
          if (stores && lane / ROWS % 2 == 0)
            PUT(y, (size_t)r_of_lane * (columns / 2) + n / 2, gate * other);
        } else if (stores) {
          const float v = record[ACTIVATES] ? activate(mine, ACTIVATION, alpha, beta) : mine;
          PUT(y, (size_t)r_of_lane * columns + n, v);
        }
      }
      ORDER();
      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
      if (tid == 0) SIGNAL(counters + number * LINE)
      barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL lets all items signal
    }
  }
  if (!stalled) leave_zeros(counters, PRODUCTS, groups, tid);
}
