// Softmax and log-softmax along the middle of (outer, depth, inner). softmax_rows gives each row of
// inner = 1 to ITEMS items, ROWS rows to a work-group; softmax_columns each column, COLUMNS to a
// work-group.
//
// Options: ITEMS (a power of two), ROWS, COLUMNS, LOGARITHM
//   CLOSED_IS_ZERO  where all is -inf the result is 0, not NaN

#ifdef LOGARITHM
#define RESULT(v, peak, total) ((v) - (peak) - log(total))
#elif defined(CLOSED_IS_ZERO)
#define RESULT(v, peak, total) ((peak) == -INFINITY ? 0.0f : exp((v) - (peak)) / (total))
#else
#define RESULT(v, peak, total) (exp((v) - (peak)) / (total))
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, ROWS, 1)))
void softmax_rows(
    __global const REAL* restrict x, __global REAL* restrict y, const long rows, const int depth
) {
  __local float partial[ROWS][ITEMS];
  const int lid = get_local_id(0), lane = get_local_id(1);
  const long row = (long)get_group_id(0) * ROWS + lane;
  const bool inside = row < rows;  // all items reach the barriers
  const size_t start = inside ? (size_t)row * depth : 0;
  float peak = -INFINITY;
  if (inside)
    for (int i = lid; i < depth; i += ITEMS) {
      const float v = GET(x, start + i);
      peak = v > peak || isnan(v) ? v : peak;
    }
  partial[lane][lid] = peak;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (lid < step) {
      const float v = partial[lane][lid + step];
      if (v > partial[lane][lid] || isnan(v)) partial[lane][lid] = v;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  peak = partial[lane][0];
  barrier(CLK_LOCAL_MEM_FENCE);
  float total = 0.0f;
  if (inside)
    for (int i = lid; i < depth; i += ITEMS) total += exp(GET(x, start + i) - peak);
  partial[lane][lid] = total;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (lid < step) partial[lane][lid] += partial[lane][lid + step];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  total = partial[lane][0];
  if (inside)
    for (int i = lid; i < depth; i += ITEMS) PUT(y, start + i, RESULT(GET(x, start + i), peak, total));
}

#if ITEMS > 1
// Combines the values of each column's items, for all of them.
#define SHARE(v, STATEMENT) { \
    partial[lid][lane] = v; \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (int step = ITEMS / 2; step > 0; step /= 2) { \
      if (lid < step) { \
        const float mine = partial[lid][lane], other = partial[lid + step][lane]; \
        partial[lid][lane] = STATEMENT; \
      } \
      barrier(CLK_LOCAL_MEM_FENCE); \
    } \
    v = partial[0][lane]; \
    barrier(CLK_LOCAL_MEM_FENCE); \
  }
#else
#define SHARE(v, STATEMENT)
#endif

__kernel __attribute__((reqd_work_group_size(COLUMNS, ITEMS, 1)))
void softmax_columns(
    __global const REAL* restrict x, __global REAL* restrict y, const long outer, const int depth,
    const long inner
) {
#if ITEMS > 1
  __local float partial[ITEMS][COLUMNS];
#endif
  const int lane = get_local_id(0), lid = get_local_id(1);
  const size_t at = get_group_id(0) * COLUMNS + lane;
  const int end = at < (size_t)(outer * inner) ? depth : 0;  // all items reach the barriers
  const size_t start = (at / inner) * depth * inner + at % inner;
  float peak = -INFINITY;
  for (int i = lid; i < end; i += ITEMS) {
    const float v = GET(x, start + i * inner);
    peak = v > peak || isnan(v) ? v : peak;
  }
  SHARE(peak, other > mine || isnan(other) ? other : mine)
  float total = 0.0f;
  for (int i = lid; i < end; i += ITEMS) total += exp(GET(x, start + i * inner) - peak);
  SHARE(total, mine + other)
  for (int i = lid; i < end; i += ITEMS)
    PUT(y, start + i * inner, RESULT(GET(x, start + i * inner), peak, total));
}
