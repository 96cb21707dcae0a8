// Products of few rows with weights of 4 bits, which a warp's matrix units multiply 16 columns at a
// time; one after another by one kernel, as block_run.cl has them.
//
// A group's warps share a tile's depth, or have tiles of their own. What they will need, of this
// product and those that follow, comes to local memory: DEEP copies of CHUNK pieces of each warp. While
// a warp waits for what others hand to it, the next copy is asked for when the one before is there:
// behind many copies on their way, all that is handed on comes late. Without the option NVIDIA, items
// read weights where they are, and compute the same by ordinary instructions.
//
// A result that a product of the same launch multiplies is handed on as handed_halves.cl says; where
// `counters` has it, its record and the reader's record tell. All groups must be on the device at a time
// if there are several products; see waiting.cl.
//
// Rows that are normalized are multiplied by their factors, of which none is larger than 1, and the
// sums by the rest: so no product waits for the sum of squares of a whole row.
//
// Options: ITEMS (a multiple of 32), ROWS (at most 4), PRODUCTS, DEEP (at least 2), CHUNK; those of
// block_weights.cl
//   PIECES      of the deepest product
//   ACTIVATION  of the products that have one
//   NORMALIZE   for the sums over a warp

#include "block_weights.cl"
#include "tiled_weights.cl"
#include "waiting.cl"
#include "warp_units.cl"
#include "copy_engine.cl"
#include "tile_sums.cl"

// A record. X, Y and RESIDUAL are numbers of tensors; EPSILON and FOR_MEAN, one over the depth, have the
// bits of floats. 1 << SHARED_BY warps share a tile, and SHARE are the pieces of each. FROM and TO are
// places in `counters` of what is handed on, or -1. FLAGS: NORMS and GATED say what block_product.cl
// does under these names.
enum { COLUMN_COUNT, DEPTH_OF, PIECES_OF, TILES_OF, SHARED_BY, SHARE, FLAGS, EPSILON, FOR_MEAN, X, Y,
       RESIDUAL, FROM, TO, RECORD = 16 };
#define DEPTH_IN(record) (record).s1
enum { BIASED = 1, ADDS = 2, GATED = 4, ACTIVATES = 8, NORMS = 16 };

#define WARPS (ITEMS / 32)
#define SLOT (CHUNK * PIECE_BYTES)
#define HELD ((PIECES * PIECE + ITEMS * 8 - 1) / (ITEMS * 8))  // eights of a row that an item has
#define SUMS (WARPS * TILE * ROWS)  // of all warps, in a turn
#define SUM_PITCH (TILE * ROWS + 1)  // of warps, in other banks
#define JOINED ((SUMS + ITEMS - 1) / ITEMS)  // sums that an item joins with those of its neighbours
#define TENSORS 12
#define WEIGHTS(n) , __global const uchar* restrict w##n, __global const REAL* restrict bias##n, \
    __global const float* restrict factors##n
#define TENSOR(n) , __global REAL* t##n
#define PLACE_OF(n) (size_t)t##n
#define PLACES_OF(n) (size_t)w##n, (size_t)bias##n, (size_t)factors##n
#define PLACES PLACE_OF(0), PLACE_OF(1), PLACE_OF(2), PLACE_OF(3), PLACE_OF(4), PLACE_OF(5), \
    PLACE_OF(6), PLACE_OF(7), PLACE_OF(8), PLACE_OF(9), PLACE_OF(10), PLACE_OF(11), \
    PLACES_OF(0), PLACES_OF(1), PLACES_OF(2), PLACES_OF(3)

#include "handed_halves.cl"

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

// What is added to an item's results of a turn, as it lies in memory.
#define GET_ADDENDS(first) \
  _Pragma("unroll") \
  for (int i = 0; i < JOINED; i++) { \
    const int n = (first) * TILE + column[i]; \
    biases[i] = residuals[i] = 0; \
    if (!is_first[i] || n >= columns) continue; \
    if (flags & BIASED) biases[i] = ((__global const ushort*)bias)[n]; \
    if (flags & ADDS) \
      residuals[i] = ((volatile __global const ushort*)residual)[(size_t)row[i] * columns + n]; \
  }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void block_tiles(
    const int16 record0, const int16 record1, const int16 record2, const int16 record3,
    __global int* counters, __global int* stall, const int handed, const float alpha, const float beta
    TENSOR(0) TENSOR(1) TENSOR(2) TENSOR(3) TENSOR(4) TENSOR(5) TENSOR(6) TENSOR(7) TENSOR(8)
    TENSOR(9) TENSOR(10) TENSOR(11)
    WEIGHTS(0) WEIGHTS(1) WEIGHTS(2) WEIGHTS(3)
) {
  __local char x_bytes[ROWS * PITCH * 2] __attribute__((aligned(16)));
  __local float totals[PIECES * 2 * SPAN] __attribute__((aligned(8)));
  __local float partial[2][WARPS * SUM_PITCH];  // of two turns, so that one barrier is enough
  __local float shared[ITEMS], squares_of[2][ROWS][WARPS];  // of two products
  __local int records[PRODUCTS * RECORD];
  __local size_t places[TENSORS + 12];  // of tensors, and of weights, bias and factors of products
  __local half* x = (__local half*)x_bytes;
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int group = get_group_id(0), groups = get_num_groups(0);

#ifdef NVIDIA
  __local char ring[WARPS * DEEP * SLOT] __attribute__((aligned(128)));
  __local ulong barriers[WARPS * DEEP];
  const uint slots = SHARED(ring) + warp * (DEEP * SLOT), there = SHARED(barriers + warp * DEEP);
  uint x_at, totals_at;  // in registers: the driver would ask where local memory begins in each loop
  asm volatile("mov.u32 %0, %1;" : "=r"(x_at) : "r"(SHARED(x)));
  asm volatile("mov.u32 %0, %1;" : "=r"(totals_at) : "r"(SHARED(totals)));
  if (lane == 0) {  // before there are loads, for which the fence would wait
    for (int d = 0; d < DEEP; d++) INIT(there + d * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#endif

  // The first product's first row, the first tensor, is on its way while records are put down.
  uint4 bits[HELD];
  #pragma unroll
  for (int h = 0; h < HELD; h++) {
    const int k = (h * ITEMS + tid) * 8;
    bits[h] = (uint4)(0);
    if (k < DEPTH_IN(record0)) bits[h] = *(__global const uint4*)(t0 + k);
  }
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
  // The next slot to be filled and the next one to be read, and what tells that they are full.
  uint to = slots, to_full = there, slot = slots, slot_full = there, parity = 0;
  uint to_parity = 0, last_full = there, last_parity = 0;
  int free_slots = DEEP, copied = 0, left = 0;  // the product asked for, and pieces of its tile
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
      free_slots--; \
      last_full = to_full; \
      last_parity = to_parity; \
      to += SLOT; \
      to_full += 8; \
      if (to_full == there + DEEP * 8) { to = slots; to_full = there; to_parity ^= 1; } \
    } \
  }
// The same if the copy before is there.
#define ASK_IF_THERE() \
  { \
    if (free_slots > 0 && is_there(last_full, last_parity)) ASK() \
  }
#define NEXT_SLOT() \
  { \
    free_slots++; \
    slot += SLOT; \
    slot_full += 8; \
    if (slot_full == there + DEEP * 8) { slot = slots; slot_full = there; parity ^= 1; } \
  }
  ASK()  // the first weights
#endif

  for (int number = 0; number < PRODUCTS; number++) {
    __local const int* record = records + number * RECORD;
    __local const size_t* own = places + TENSORS + number * 3;
    __global const REAL* bias = (__global const REAL*)own[1];
    __global const float* factors = (__global const float*)own[2];
    __global const REAL* a = (__global const REAL*)places[record[X]];
    __global const REAL* residual = (__global const REAL*)places[record[RESIDUAL]];
    __global REAL* y = (__global REAL*)places[record[Y]];
    const int depth = record[DEPTH_OF], from_at = record[FROM];
#if PRODUCTS > 1
    // The first look, while the rest is prepared.
    if (from_at >= 0) look_at_halves(bits, (__global uint*)counters + from_at, depth, tid);
#endif
    const int columns = record[COLUMN_COUNT], pieces = record[PIECES_OF];
    const int shared_by = record[SHARED_BY], sharers = 1 << shared_by;
    const int flags = record[FLAGS], to_at = record[TO];
    const int width = flags & GATED ? columns / 2 : columns;  // of results
    const float epsilon = as_float(record[EPSILON]), for_mean = as_float(record[FOR_MEAN]);
    Part part = part_of(record, warp, group, groups);
    // Sums of one row and column are those of neighbouring items, the first of which adds what else
    // there is: the row, the column in the first turn, and where an item's own sum is.
    int row[JOINED], column[JOINED], place[JOINED];
    bool is_first[JOINED];
    #pragma unroll
    for (int i = 0; i < JOINED; i++) {
      const uint at = min(i * ITEMS + tid, SUMS - 1), of_turn = at >> shared_by;
      const uint tile = of_turn / (TILE * ROWS);
      row[i] = of_turn / TILE % ROWS;
      column[i] = (tile * groups + group) * TILE + of_turn % TILE;
      place[i] = ((tile << shared_by) + (at & (sharers - 1))) * SUM_PITCH + of_turn % (TILE * ROWS);
      is_first[i] = i * ITEMS + tid < SUMS && !(at & (sharers - 1));
    }

    // What belongs to the model waits for nobody, nor does a residual: what this launch makes of it is
    // made by the same group.
    float factor[HELD][8], rest = 1.0f;
    #pragma unroll
    for (int h = 0; h < HELD; h++) {
      const int k = (h * ITEMS + tid) * 8;
      vstore8((float8)(1.0f), 0, factor[h]);
      if (flags & NORMS && k < depth) vstore8(*(__global const float8*)(factors + k), 0, factor[h]);
    }
    if (flags & NORMS) rest = factors[depth];
    ushort biases[JOINED], residuals[JOINED];
    GET_ADDENDS(0)
#ifdef NVIDIA
    if (number == 0) ASK()  // behind other loads, which would come later
#endif

    for (int r = 0; r < ROWS; r++) {
#if PRODUCTS > 1
      if (from_at >= 0) {
        __global const uint* handed_row = (__global const uint*)counters + from_at + r * depth / 2;
        if (r > 0) look_at_halves(bits, handed_row, depth, tid);
        int looks = 0;
        while (of_any(!has_halves(bits)) && looks < MOST_LOOKS) {
#ifdef NVIDIA
          ASK_IF_THERE()
#endif
          look_at_halves(bits, handed_row, depth, tid);
          looks++;
        }
        if (looks == MOST_LOOKS) stall[1] = 1;
        #pragma unroll
        for (int h = 0; h < HELD; h++) bits[h] = ~bits[h];
      } else
#endif
      if (number > 0 || r > 0) {
        #pragma unroll
        for (int h = 0; h < HELD; h++) {
          const int k = (h * ITEMS + tid) * 8;
          bits[h] = (uint4)(0);
          if (k < depth) bits[h] = *(__global const uint4*)(a + (size_t)r * depth + k);
        }
      }
      float squares = 0.0f;
      #pragma unroll
      for (int h = 0; h < HELD; h++) {
        if (IS_IDLE((h * ITEMS + warp * 32) * 8, pieces * PIECE)) continue;
        const int k = (h * ITEMS + tid) * 8;
        float v[8], ordered[8], total = 0.0f;
        UNPACK8(v, bits[h]);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
          squares = fma(v[i], v[i], squares);
          ordered[i] = v[PLACE(i)] * factor[h][PLACE(i)];
        }
        ROUND8(ordered, bits[h]);
        if (k < pieces * PIECE) *(__local uint4*)(x + r * PITCH + k) = bits[h];
        #pragma unroll
        for (int i = 0; i < 8; i++) total += ordered[i];
        total += from_lane(total, lane ^ 1, shared, tid);
        total += from_lane(total, lane ^ 2, shared, tid);
#ifdef ZERO
        total *= -(ZERO * ONE);
#else
        total *= -ONE;
#endif
        if (k < pieces * PIECE && k % 32 == 0) totals[k / 32 * SPAN + r] = total;
      }
      if (flags & NORMS) squares = sum_over_warp(squares, shared, tid);
      if (lane == 0) squares_of[number % 2][r][warp] = squares;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if PRODUCTS > 1
    if (number == PRODUCTS - 1 && tid == ITEMS - 1) PASS(counters)  // this group takes no more
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
          const uint row = x_at + at * PIECE * 2, total = totals_at + at * 2 * SPAN * 4;
          const int count = min(GROUP, last - at);
          ADD_PIECES(sums, piece, row, total, count, lane)
        }
        WARP_BARRIER();
        NEXT_SLOT()
        if (chunk + CHUNK < last) ASK()
      }
#else
      for (int p = part.first; p < last; p++)
        if (lane % 4 < ROWS)
          add_piece(sums, piece_of((__global const uchar*)own[0], first + part.tile, pieces, p),
                    lane / 4, x + lane % 4 * PITCH + p * PIECE, totals + p * 2 * SPAN + lane % 4);
#endif
      put_sums(partial[turn % 2] + warp * SUM_PITCH, sums, lane, shared, tid);
      barrier(CLK_LOCAL_MEM_FENCE);
      #pragma unroll
      for (int i = 0; i < JOINED; i++) {
        if (IS_IDLE(i * ITEMS + warp * 32, SUMS)) continue;
        const int r = row[i], n = first * TILE + column[i];
        float sum = partial[turn % 2][place[i]];
        float square = squares_of[number % 2][r][lane % WARPS];
        #pragma unroll
        for (int step = 1; step < WARPS; step *= 2) {
          const float other = from_lane(sum, lane ^ step, shared, tid);
          if (step < sharers) sum += other;
          square += from_lane(square, lane ^ step, shared, tid);
        }
        if (flags & NORMS) sum *= rsqrt(fma(square, for_mean, epsilon)) * rest;
        sum = fma(sum, 1.0f / ONE, number_of_half(biases[i]) + number_of_half(residuals[i]));
        int at_y = n;
        if (flags & GATED) {
          const float other = from_lane(sum, lane + sharers, shared, tid);  // of the next column
          sum = activate(sum, ACTIVATION, alpha, beta) * other;
          at_y = n / 2;
        } else if (flags & ACTIVATES) {
          sum = activate(sum, ACTIVATION, alpha, beta);
        }
        if (is_first[i] && n < columns && !(flags & GATED && n & 1)) {
#if PRODUCTS > 1
          if (to_at >= 0) hand_half((__global ushort*)(counters + to_at) + r * width + at_y, sum);
#endif
          PUT(y, (size_t)r * width + at_y, sum);
        }
      }
      GET_ADDENDS(first + part.step)
#ifdef NVIDIA
      if (part.first < last) {  // behind results, for which others wait
        ASK()
        ASK_IF_THERE()
      }
#endif
    }
#if PRODUCTS > 1
    if (number < PRODUCTS - 1) barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#endif
  }
#if PRODUCTS > 1
  if (group == groups - 1) {  // which often has fewer tiles
    if (tid == 0) await_passed(counters, groups, stall);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = tid; i < handed; i += ITEMS) counters[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL may let all items store, or none
  }
#endif
}
