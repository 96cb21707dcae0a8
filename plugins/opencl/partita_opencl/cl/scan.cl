// Cumulative sums and products over the middle of (outer, depth, inner). Two kernels: scan_rows for
// inner = 1 gives a row to a work-group; scan_columns gives a column to an item, so that neighbours
// read neighbours.
//
// Options: T  type of elements in registers, JOINED  type in which they are joined, ITEMS (a power
//   of two), PRODUCT (else sums), EXCLUSIVE  without the element itself, REVERSE  from the end

#ifdef HALF
#define M half
#else
#define M T
#endif

#ifdef PRODUCT
#define START 1
#define JOIN(a, b) (T)((JOINED)(a) * (JOINED)(b))
#else
#define START 0
#define JOIN(a, b) (T)((JOINED)(a) + (JOINED)(b))
#endif

#ifdef REVERSE
#define PLACE(n, depth) ((depth) - 1 - (n))
#else
#define PLACE(n, depth) (n)
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void scan_rows(__global const M* restrict x, __global M* restrict y, const long depth) {
  __local T joined[ITEMS];
  const int lid = get_local_id(0);
  x += get_group_id(0) * depth;
  y += get_group_id(0) * depth;
  T before = START;
  for (long begin = 0; begin < depth; begin += ITEMS) {
    const long n = begin + lid;
    T own = START;
    if (n < depth) own = GET(x, PLACE(n, depth));
    joined[lid] = own;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 1; step < ITEMS; step *= 2) {
      T result = joined[lid];
      if (lid >= step) result = JOIN(joined[lid - step], result);
      barrier(CLK_LOCAL_MEM_FENCE);
      joined[lid] = result;
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#ifdef EXCLUSIVE
    T last = before;
    if (lid > 0) last = JOIN(before, joined[lid - 1]);
#else
    const T last = JOIN(before, joined[lid]);
#endif
    if (n < depth) PUT(y, PLACE(n, depth), last);
    before = JOIN(before, joined[ITEMS - 1]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}

__kernel void scan_columns(
    __global const M* restrict x, __global M* restrict y, const long columns, const long depth,
    const long inner
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)columns) return;
  const long first = at / inner * depth * inner + at % inner;
  T total = START;
  for (long n = 0; n < depth; n++) {
    const long place = first + PLACE(n, depth) * inner;
    const T own = GET(x, place);
#ifdef EXCLUSIVE
    PUT(y, place, total);
    total = JOIN(total, own);
#else
    total = JOIN(total, own);
    PUT(y, place, total);
#endif
  }
}
