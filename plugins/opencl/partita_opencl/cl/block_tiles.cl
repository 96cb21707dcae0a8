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
// Options: ITEMS (a multiple of 32), ROWS (at most 8), PRODUCTS, DEEP, CHUNK; those of block_weights.cl
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

// What is added to an item's results of a turn.
#define GET_ADDENDS(first) \
  _Pragma("unroll") \
  for (int i = 0; i < RESULTS; i++) { \
    const int at = i * ITEMS + tid, r = at / TILE % ROWS; \
    const int n = ((first) + at / (TILE * ROWS) * groups + group) * TILE + at % TILE; \
    const bool is_there = at < (WARPS >> shared_by) * TILE * ROWS && n < columns; \
    addend[i] = is_there && record[BIASED] ? GET(bias, n) : 0.0f; \
    if (is_there && record[ADDS]) addend[i] += GET(FRESH(residual), (size_t)r * columns + n); \
  }

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void block_tiles(
    __global const int* restrict table, __global int* counters, __global int* stall,
    const float alpha, const float beta
    TENSOR(0) TENSOR(1) TENSOR(2) TENSOR(3) TENSOR(4) TENSOR(5) TENSOR(6) TENSOR(7) TENSOR(8)
    TENSOR(9) TENSOR(10) TENSOR(11)
    WEIGHTS(0) WEIGHTS(1) WEIGHTS(2) WEIGHTS(3)
) {
  __local char x_bytes[ROWS * PITCH * 2] __attribute__((aligned(16)));
  __local float totals[PIECES * 2 * QUADS_OF_ROWS * 4] __attribute__((aligned(16)));
  __local float partial[2][WARPS][ROWS * TILE];  // of two turns, so that one barrier is enough
  __local float shared[ITEMS];
  __local int records[PRODUCTS * RECORD];
  __local size_t places[TENSORS + 12];  // of tensors, and of weights, bias and factors of products
  __local int word;
  __local half* x = (__local half*)x_bytes;
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int group = get_group_id(0), groups = get_num_groups(0);
  const int column = lane / 4, t = lane % 4;
  // The last item speaks for the group: it asks for no copies, for which a signal would wait.
  const int from_last = ITEMS - 1 - tid;
  bool stalled = false;

  for (int i = tid; i < PRODUCTS * RECORD; i += ITEMS) records[i] = table[i];
  if (tid == 0) {
    const size_t given[] = {PLACES};
    #pragma unroll
    for (int i = 0; i < TENSORS + 12; i++) places[i] = given[i];
  }
  barrier(CLK_LOCAL_MEM_FENCE);

#ifdef NVIDIA
  __local char ring[WARPS * DEEP * SLOT] __attribute__((aligned(128)));
  __local ulong barriers[WARPS * DEEP];
  __local const char* slots = ring + warp * (DEEP * SLOT);
  const uint there = SHARED(barriers + warp * DEEP);
  int on_way = 0, copied = 0, left = 0;  // copies; the product asked for, and pieces of its tile
  Part copying = part_of(records, warp, group, groups);
  __global const uchar* from = 0;
#define ASK(slot) \
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
    const int count = min(left, CHUNK); \
    if (count > 0 && lane == 0) { \
      EXPECT(there + (slot) * 8, count * PIECE_BYTES); \
      BRING_BYTES(SHARED(slots) + (slot) * SLOT, from, count * PIECE_BYTES, there + (slot) * 8); \
    } \
    from += CHUNK * PIECE_BYTES; \
    left -= count; \
    on_way += count > 0; \
  }
#define NEXT_SLOT() if (++slot == DEEP) { slot = 0; parity ^= 1; }
  if (lane == 0) {
    for (int d = 0; d < DEEP; d++) INIT(there + d * 8, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  WARP_BARRIER();
  int slot = 0;
  uint parity = 0;
#endif

  for (int number = 0; number < PRODUCTS && !stalled; number++) {
    __local const int* record = records + number * RECORD;
    __local const size_t* own = places + TENSORS + number * 3;
    __global const REAL* bias = (__global const REAL*)own[1];
    __global const float* factors = (__global const float*)own[2];
    const int columns = record[COLUMN_COUNT], depth = record[DEPTH_OF], pieces = record[PIECES_OF];
    const int shared_by = record[SHARED_BY];
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
          const int k = (h * ITEMS + tid) * 8;
          bits[h] = (uint4)(0);
          if (k < depth) FRESH_BITS(bits[h], a + (size_t)r * depth + k)
        }
#ifdef NVIDIA
        // The first rows are asked for before all those weights, which they would wait for.
        if (number == 0 && r == ROWS - 1)
          for (int d = 0; d < DEEP; d++) ASK(d)
#endif
        float v[HELD][8], norm = 1.0f;
        #pragma unroll
        for (int h = 0; h < HELD; h++) UNPACK8(v[h], bits[h]);
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
          norm = rsqrt(squares / (float)depth + as_float(record[EPSILON]));
        }
        #pragma unroll
        for (int h = 0; h < HELD; h++) {
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
          if (within_row && k % 32 == 0) {
            __local float* quad = totals + (k / 32 * QUADS_OF_ROWS + r / 2) * 4;
            quad[r % 2] = quad[r % 2 + 2] = total;
          }
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);

      // All warps take as many turns; those beyond the last tile have nothing to add.
      for (int first = 0, turn = 0; first < part.tiles; first += part.step, turn++) {
        float sums[2][PAIR];
        #pragma unroll
        for (int i = 0; i < 2 * PAIR; i++) sums[i / PAIR][i % PAIR] = 0.0f;
        const int last = first + part.tile < part.tiles ? part.last : part.first;
#ifdef NVIDIA
        for (int chunk = part.first; chunk < last; chunk += CHUNK) {
          const uint piece = SHARED(slots) + slot * SLOT;
          Reader reader = {
              piece + lane * 16, piece + WORD_BYTES + column * SIDE,
              SHARED(x) + (column * PITCH + chunk * PIECE + t * 8) * 2,
              SHARED(totals) + (chunk * 2 * QUADS_OF_ROWS + t % QUADS_OF_ROWS) * 16, column < ROWS};
          await(there + slot * 8, parity);
          int pieces_left = min(CHUNK, last - chunk);
          for (; pieces_left > 1; pieces_left -= 2) {
            ADD_PIECE(sums, reader, 0)
            ADD_PIECE(sums, reader, 1)
            reader.words += 2 * PIECE_BYTES;
            reader.side += 2 * PIECE_BYTES;
            reader.rows += 2 * PIECE * 2;
            reader.totals += 2 * 2 * QUADS_OF_ROWS * 16;
          }
          if (pieces_left > 0) ADD_PIECE(sums, reader, 0)
          WARP_BARRIER();
          on_way--;
          ASK(slot)
          NEXT_SLOT()
        }
#else
        for (int p = part.first; p < last; p++)
          if (t * PAIR < ROWS)
            add_piece(sums, piece_of((__global const uchar*)own[0], first + part.tile, pieces, p),
                      column, x + t * PAIR * PITCH + p * PIECE,
                      totals + (p * 2 * QUADS_OF_ROWS + t * PAIR / 2) * 4);
#endif
        __local float* mine = partial[turn % 2][warp];
        #pragma unroll
        for (int i = 0; i < 2 * PAIR; i++) {
          const int r = t * PAIR + i % PAIR;
          if (r < ROWS) mine[r * TILE + i / PAIR * 8 + column] = sums[i / PAIR][i % PAIR];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        #pragma unroll
        for (int i = 0; i < RESULTS; i++) {
          const int at = i * ITEMS + tid, r = at / TILE % ROWS;
          const int place = at / (TILE * ROWS);  // among the tiles of this turn
          const int n = (first + place * groups + group) * TILE + at % TILE;
          const bool is_there = at < (WARPS >> shared_by) * TILE * ROWS;
          float sum = 0.0f;
          if (is_there)
            for (int s = 0; s < 1 << shared_by; s++)
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
      ORDER();
      barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
      if (from_last == 0) SIGNAL(counters + number * LINE)
      barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL lets all items signal
#endif
    }
  }
#ifdef NVIDIA
  for (; on_way > 0; on_way--) {  // of a group that gave up: local memory is the next one's then
    await(there + slot * 8, parity);
    NEXT_SLOT()
  }
#endif
#if PRODUCTS > 1
  if (!stalled) leave_zeros(counters, PRODUCTS, groups, from_last);
#endif
}
