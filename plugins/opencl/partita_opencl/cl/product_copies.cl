// How the items of a group bring tiles of float32 to local memory by copies that arrive later, for
// STAGES - 1 steps ahead, past the registers; otherwise they would do what product_loads.cl has them do.
// Rows of a become columns on the way. Past the last row or column, that one is copied again, for sums
// that are not stored; past the depth, zeros come.
//
// To be included before the kernel, which begins with product_place.cl. Options: STAGES, WHOLE, NVIDIA;
// columns is a multiple of four, and an item's copies of a are as many as fit BK / 8 times BM rows.

#include "warp_units.cl"

#ifdef NVIDIA
#define COPY_ONE(to, from, bytes) asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" \
    :: "r"(SHARED(to)), "l"((size_t)(from)), "r"(bytes) : "memory")
#else
#define COPY_ONE(to, from, bytes) *(to) = (bytes) > 0 ? *(from) : 0.0f
#define COPY(to, from, bytes) *(__local float4*)(to) = \
    (bytes) > 0 ? *(__global const float4*)(from) : (float4)(0.0f)
#define COMMIT()
#define ARRIVED(later)
#endif

#ifdef WHOLE
#define IN_DEPTH(k) true
#else
#define IN_DEPTH(k) ((k) < k_end)
#endif

// Eight items have neighbours of a row, so that they write to different banks.
#define A_ROWS_AT_ONCE (ITEMS / 8)
#define A_ROWS_OF_ITEM (BM / A_ROWS_AT_ONCE)
#define B_COPIES (BN * BK / 4 / ITEMS)

// Which places are copied by an item, in each step.
#define FIND_PLACES() \
  const int a_k = tid % 8, a_m = tid / 8; \
  __global const float* a_from = a + (size_t)m0 * depth + a_k; \
  __global const float* b_from = b + (size_t)bk * columns + min(bn, columns - 4); \
  int a_rows[A_ROWS_OF_ITEM]; \
  _Pragma("unroll") \
  for (int i = 0; i < A_ROWS_OF_ITEM; i++) \
    a_rows[i] = min(a_m + i * A_ROWS_AT_ONCE, rows - 1 - m0) * depth;

#define BRING(s, k0) \
  { \
    _Pragma("unroll") \
    for (int i = 0; i < A_ROWS_OF_ITEM * (BK / 8); i++) { \
      const int k = i / A_ROWS_OF_ITEM * 8, row = i % A_ROWS_OF_ITEM; \
      COPY_ONE(a_tile[s] + (a_k + k) * A_ROW + a_m + row * A_ROWS_AT_ONCE, \
               a_from + (size_t)((k0) + k) + a_rows[row], IN_DEPTH((k0) + a_k + k) ? 4 : 0); \
    } \
    _Pragma("unroll") \
    for (int i = 0; i < B_COPIES; i++) { \
      const int k = i * b_rows; \
      COPY(b_tile[s] + (bk + k) * BN + b_at, b_from + (size_t)((k0) + k) * columns, \
           IN_DEPTH((k0) + bk + k) ? 16 : 0); \
    } \
  }
