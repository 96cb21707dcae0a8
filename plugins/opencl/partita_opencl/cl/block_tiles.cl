// Products of few rows with weights of 4 bits, which a warp's matrix units multiply 16 columns at a
// time; one after another by one kernel, as block_run.cl has them.
//
// A group's warps share a tile's depth, or have tiles of their own. What they will need, of this
// product and those that follow, is on its way to local memory: DEEP copies of CHUNK pieces of each
// warp. Without the option NVIDIA, items read weights where they are, and compute the same by ordinary
// instructions.
//
// All groups must be on the device at a time if there are several products; see waiting.cl.
//
// Options: ITEMS (a multiple of 32), ROWS (at most 4), PRODUCTS, DEEP, CHUNK; those of block_weights.cl
//   PIECES      of the deepest product
//   ACTIVATION  of the products that have one
//   NORMALIZE   for the sums over a warp

#include "block_weights.cl"
#include "tiled_weights.cl"
#include "waiting.cl"
#include "warp_units.cl"
#include "copy_engine.cl"
#include "tile_sums.cl"

// A record. X, Y and RESIDUAL are numbers of tensors, EPSILON has the bits of a float. 1 << SHARED_BY
// warps share a tile, and SHARE are the pieces of each; NORMS and GATED say what block_product.cl does
// under these names.
enum { COLUMN_COUNT, DEPTH_OF, PIECES_OF, TILES_OF, SHARED_BY, SHARE, BIASED, ADDS, GATED, ACTIVATES,
       NORMS, EPSILON, X, Y, RESIDUAL, RECORD = 16 };

#define WARPS (ITEMS / 32)
#define SLOT (CHUNK * PIECE_BYTES)
#define HELD ((PIECES * PIECE + ITEMS * 8 - 1) / (ITEMS * 8))
#define RESULTS ((WARPS * TILE * ROWS + ITEMS - 1) / ITEMS)  // of an item, in a turn
#define TENSORS 12
#define WEIGHTS(n) , __global const uchar* restrict w##n, __global const REAL* restrict bias##n, \
    __global const float* restrict factors##n
#define TENSOR(n) , __global REAL* t##n
#define PLACE_OF(n) (size_t)t##n
#define PLACES_OF(n) (size_t)w##n, (size_t)bias##n, (size_t)factors##n
#define PLACES PLACE_OF(0), PLACE_OF(1), PLACE_OF(2), PLACE_OF(3), PLACE_OF(4), PLACE_OF(5), \
    PLACE_OF(6), PLACE_OF(7), PLACE_OF(8), PLACE_OF(9), PLACE_OF(10), PLACE_OF(11), \
    PLACES_OF(0), PLACES_OF(1), PLACES_OF(2), PLACES_OF(3)

// What a warp computes of a product: pieces of each `step`th tile.
typedef struct {
  int tile, tiles, step, first, last;
} Part;

Part part_of(__local const int* record, const int warp, const int group, const int groups) {
  const int shared_by = record[SHARED_BY];
  Part part;
  part.tile = (warp >> shared_by) * groups + group;
  part.tiles = record[TILES_OF];
  part.step = (WARPS >> shared_by) * groups;
  part.first = min(record[PIECES_OF], (warp & ((1 << shared_by) - 1)) * record[SHARE]);
  part.last = min(record[PIECES_OF], part.first + record[SHARE]);
  return part;
}

// Whether a warp has no tile left; idle warps still take part in barriers.
#ifdef NVIDIA
#define IS_IDLE(first, end) ((first) >= (end))
#else
#define IS_IDLE(first, end) false  // all items come to barriers
#endif

// What is added to an item's results of a turn.
#define GET_ADDENDS(first) \
  _Pragma("unroll") \
  for (int i = 0; i < RESULTS; i++) { \
    if (IS_IDLE(i * ITEMS + warp * 32, results)) continue; \
    const int at = i * ITEMS + tid, r = at / TILE % ROWS; \
    const int n = ((first) + at / (TILE * ROWS) * groups + group) * TILE + at % TILE; \
    const bool is_there = at < results && n < columns; \
    addend[i] = is_there && record[BIASED] ? GET(bias, n) : 0.0f; \
    if (is_there && record[ADDS]) addend[i] += GET(FRESH(residual), (size_t)r * columns + n); \
  }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void block_tiles(
    const int16 record0, const int16 record1, const int16 record2, const int16 record3,
    __global int* counters, __global int* stall, const float alpha, const float beta
    TENSOR(0) TENSOR(1) TENSOR(2) TENSOR(3) TENSOR(4) TENSOR(5) TENSOR(6) TENSOR(7) TENSOR(8)
    TENSOR(9) TENSOR(10) TENSOR(11)
    WEIGHTS(0) WEIGHTS(1) WEIGHTS(2) WEIGHTS(3)
) {
  __local char x_bytes[ROWS * PITCH * 2] __attribute__((aligned(16)));
  __local float totals[PIECES * 2 * SPAN] __attribute__((aligned(8)));
  __local float partial[2][WARPS][ROWS * TILE];  // of two turns, so that one barrier is enough
  __local float shared[ITEMS], squares_of[2][WARPS];
  __local int records[PRODUCTS * RECORD];
  __local size_t places[TENSORS + 12];  // of tensors, and of weights, bias and factors of products
  __local int word;
  __local half* x = (__local half*)x_bytes;
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int group = get_group_id(0), groups = get_num_groups(0);
  // The last item speaks for the group: it asks for no copies, for which a signal would wait.
  const int from_last = ITEMS - 1 - tid;
  bool stalled = false;

  if (tid == 32 % ITEMS) {
    vstore16(record0, 0, records);
#if PRODUCTS > 1
    vstore16(record1, 1, records);
#endif
#if PRODUCTS > 2
    vstore16(record2, 2, records);
#endif
#if PRODUCTS > 3
    vstore16(record3, 3, records);
#endif
  }
  if (tid == 0) {
    const size_t given[] = {PLACES};
    #pragma unroll
    for (int i = 0; i < TENSORS + 12; i++) places[i] = given[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);

#ifdef NVIDIA
  __local char ring[WARPS * DEEP * SLOT] __attribute__((aligned(128)));
  __local ulong barriers[WARPS * DEEP];
  const uint slots = SHARED(ring) + warp * (DEEP * SLOT), there = SHARED(barriers + warp * DEEP);
  // The next slot to be filled and the next one to be read, and what tells that they are full.
  uint to = slots, to_full = there, slot = slots, slot_full = there, parity = 0;
  int on_way = 0, copied = 0, left = 0;  // copies; the product asked for, and pieces of its tile
  Part copying = part_of(records, warp, group, groups);
  __global const uchar* from = 0;
#define ASK() \
  { \
    while (left == 0 && copied < PRODUCTS) { \
      if (copying.tile < copying.tiles && copying.first < copying.last) { \
        from = piece_of((__global const uchar*)places[TENSORS + copied * 3], copying.tile, \
                        records[copied * RECORD + PIECES_OF], copying.first); \
        left = copying.last - copying.first; \
        copying.tile += copying.step; \
      } else if (++copied < PRODUCTS) { \
        copying = part_of(records + copied * RECORD, warp, group, groups); \
      } \
    } \
    if (left > 0) { \
      const int count = min(left, CHUNK), bytes = count * PIECE_BYTES; \
      if (lane == 0) { \
        EXPECT(to_full, bytes); \
        BRING_BYTES(to, from, bytes, to_full); \
      } \
      from += bytes; \
      left -= count; \
      on_way++; \
      to += SLOT; \
      to_full += 8; \
      if (to_full == there + DEEP * 8) { to = slots; to_full = there; } \
    } \
  }
#define NEXT_SLOT() \
  { \
    on_way--; \
    slot += SLOT; \
    slot_full += 8; \
    if (slot_full == there + DEEP * 8) { slot = slots; slot_full = there; parity ^= 1; } \
  }
  if (lane == 0) {
    for (int d = 0; d < DEEP; d++) INIT(there + d * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  WARP_BARRIER();
#endif

  for (int number = 0; number < PRODUCTS && !stalled; number++) {
    __local const int* record = records + number * RECORD;
    __local const size_t* own = places + TENSORS + number * 3;
    __global const REAL* bias = (__global const REAL*)own[1];
    __global const float* factors = (__global const float*)own[2];
    const int columns = record[COLUMN_COUNT], depth = record[DEPTH_OF], pieces = record[PIECES_OF];
    const int shared_by = record[SHARED_BY], results = (WARPS >> shared_by) * TILE * ROWS;
    Part part = part_of(record, warp, group, groups);

    // What belongs to the model waits for nobody.
    float factor[HELD][8];
    #pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int k = (h * ITEMS + tid) * 8;
      if (record[NORMS] && k < depth) vstore8(*(__global const float8*)(factors + k), 0, factor[h]);
    }
#if PRODUCTS > 1
    if (number > 0)
      stalled = !all_came(counters + (number - 1) * LINE, groups, stall, &word, from_last);
    if (number == PRODUCTS - 1 && !stalled) {
      if (from_last == 0) PASS(counters + number * LINE)
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#endif
    if (!stalled) {
      __global const REAL* a = (__global const REAL*)places[record[X]];
      __global const REAL* residual = (__global const REAL*)places[record[RESIDUAL]];
      __global REAL* y = (__global REAL*)places[record[Y]];
      float addend[RESULTS];
      GET_ADDENDS(0)
      for (int r = 0; r < ROWS; r++) {
        uint4 bits[HELD];
        #pragma unroll
        for (int h = 0; h < HELD; h++) {
          if (IS_IDLE((h * ITEMS + warp * 32) * 8, pieces * PIECE)) continue;
          const int k = (h * ITEMS + tid) * 8;
          bits[h] = (uint4)(0);
          if (k < depth) FRESH_BITS(bits[h], a + (size_t)r * depth + k)
        }
        float v[HELD][8], norm = 1.0f;
        #pragma unroll
        for (int h = 0; h < HELD; h++)
          if (!IS_IDLE((h * ITEMS + warp * 32) * 8, pieces * PIECE)) UNPACK8(v[h], bits[h]);
        if (record[NORMS]) {
          float squares = 0.0f;
          #pragma unroll
          for (int h = 0; h < HELD; h++) {
            if (IS_IDLE((h * ITEMS + warp * 32) * 8, pieces * PIECE)) continue;
            #pragma unroll
            for (int i = 0; i < 8; i++) squares = fma(v[h][i], v[h][i], squares);
          }
          squares = sum_over_warp(squares, shared, tid);
          if (lane == 0) squares_of[r % 2][warp] = squares;
          barrier(CLK_LOCAL_MEM_FENCE);
          squares = 0.0f;
          #pragma unroll
          for (int i = 0; i < WARPS; i++) squares += squares_of[r % 2][i];
          norm = rsqrt(squares / (float)depth + as_float(record[EPSILON]));
        }
        #pragma unroll
        for (int h = 0; h < HELD; h++) {
          if (IS_IDLE((h * ITEMS + warp * 32) * 8, pieces * PIECE)) continue;
          const int k = (h * ITEMS + tid) * 8;
          const bool within_row = k < pieces * PIECE;
          float ordered[8], total = 0.0f;
          #pragma unroll
          for (int i = 0; i < 8; i++) {
            ordered[i] = v[h][PLACE(i)];
            if (record[NORMS]) ordered[i] *= k < depth ? norm * factor[h][PLACE(i)] : 0.0f;
          }
          if (within_row) {
            __local half* to = x + r * PITCH + k;
            PUT_LOCAL8(to, ordered);
            GET_LOCAL8(ordered, to);  // as rounded
            #pragma unroll
            for (int i = 0; i < 8; i++) total += ordered[i];
          }
          total += from_lane(total, lane ^ 1, shared, tid);
          total += from_lane(total, lane ^ 2, shared, tid);
#ifdef ZERO
          total *= -(ZERO * ONE);
#else
          total *= -ONE;
#endif
          if (within_row && k % 32 == 0) totals[k / 32 * SPAN + r] = total;
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);

#ifdef NVIDIA
      // The first rows are there before weights are asked for, behind which they would come.
      if (number == 0)
        for (int d = 0; d < DEEP; d++) ASK()
#endif
      // All warps take as many turns; those beyond the last tile have nothing to add.
      for (int first = 0, turn = 0; first < part.tiles; first += part.step, turn++) {
        float sums[2][PAIR];
        #pragma unroll
        for (int i = 0; i < 2 * PAIR; i++) sums[i / PAIR][i % PAIR] = 0.0f;
        const int last = first + part.tile < part.tiles ? part.last : part.first;
#ifdef NVIDIA
        for (int chunk = part.first; chunk < last; chunk += CHUNK) {
          await(slot_full, parity);
          for (int at = chunk; at < min(chunk + CHUNK, last); at += GROUP) {
            const uint piece = slot + (at - chunk) * PIECE_BYTES;
            const uint row = SHARED(x) + at * PIECE * 2, total = SHARED(totals) + at * 2 * SPAN * 4;
            const int count = min(GROUP, last - at);
            ADD_PIECES(sums, piece, row, total, count, lane)
          }
          WARP_BARRIER();
          NEXT_SLOT()
          ASK()
        }
#else
        for (int p = part.first; p < last; p++)
          if (lane % 4 < ROWS)
            add_piece(sums, piece_of((__global const uchar*)own[0], first + part.tile, pieces, p),
                      lane / 4, x + lane % 4 * PITCH + p * PIECE, totals + p * 2 * SPAN + lane % 4);
#endif
        put_sums(partial[turn % 2][warp], sums, lane, shared, tid);
        barrier(CLK_LOCAL_MEM_FENCE);
        #pragma unroll
        for (int i = 0; i < RESULTS; i++) {
          if (IS_IDLE(i * ITEMS + warp * 32, results)) continue;
          const int at = i * ITEMS + tid, r = at / TILE % ROWS;
          const int place = at / (TILE * ROWS);  // among the tiles of this turn
          const int n = (first + place * groups + group) * TILE + at % TILE;
          const bool is_there = at < results;
          float sum = 0.0f;
          #pragma unroll
          for (int s = 0; s < WARPS; s++)  // written out, so that all are read at once
            if (is_there && s < 1 << shared_by)
              sum += partial[turn % 2][(place << shared_by) + s][at % (TILE * ROWS)];
          sum = fma(sum, 1.0f / ONE, addend[i]);
          const bool stores = is_there && n < columns;
          const float other = from_lane(sum, lane + 1, shared, tid);  // of the next column
          if (record[GATED]) {
            const float gate = activate(sum, ACTIVATION, alpha, beta);
            if (stores && n % 2 == 0) PUT(y, (size_t)r * (columns / 2) + n / 2, gate * other);
          } else if (stores) {
            const float v = record[ACTIVATES] ? activate(sum, ACTIVATION, alpha, beta) : sum;
            PUT(y, (size_t)r * columns + n, v);
          }
        }
        GET_ADDENDS(first + part.step)
      }
#if PRODUCTS > 1
      if (number < PRODUCTS - 1) {
        ORDER();
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (from_last == 0) SIGNAL(counters + number * LINE)
        barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL lets all items signal
      }
#endif
    }
  }
#ifdef NVIDIA
  while (on_way > 0) {  // of a group that gave up: local memory is the next one's then
    await(slot_full, parity);
    NEXT_SLOT()
  }
#endif
#if PRODUCTS > 1
  if (!stalled && group == 0) zero_passed(counters, PRODUCTS, groups, stall, from_last);
#endif
}
