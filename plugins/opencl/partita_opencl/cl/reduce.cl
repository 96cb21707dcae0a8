// Reductions over the middle of (outer, depth, inner). Two kernels: reduce_rows for inner = 1 gives
// a row to a work-group; in reduce_columns neighbours read neighbours, and ITEMS of a work-group share
// each of its COLUMNS outputs. Long ranges are cut in chunks: a first pass writes (outer, chunks,
// inner), a second one reduces the chunks.
//
// Options: T accumulator type, and the type of elements in memory unless X_HALF, Y_HALF say that
//   those of x or y are float16, ITEMS (a power of two), COLUMNS, LOWEST and HIGHEST value of T
//   MAXIMUM, MINIMUM, PRODUCT  how elements are joined, else by a sum
//   SQUARES, MAGNITUDES        applied to elements before the reduction
//   MEAN, ROOT, LOGARITHM      applied to the result

#ifdef X_HALF
#define X half
#define GET_X(p, i) GET_HALF(p, i)
#else
#define X T
#define GET_X(p, i) (p)[i]
#endif
#ifdef Y_HALF
#define Y half
#define PUT_Y(p, i, v) PUT_HALF(p, i, v)
#else
#define Y T
#define PUT_Y(p, i, v) (p)[i] = (v)
#endif

#if defined(MAXIMUM)
#define START LOWEST
#define JOIN(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#elif defined(MINIMUM)
#define START HIGHEST
#define JOIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#elif defined(PRODUCT)
#define START 1
#define JOIN(a, b) ((a) * (b))
#else
#define START 0
#define JOIN(a, b) ((a) + (b))
#endif

#if defined(SQUARES)
#define BEFORE(v) ((v) * (v))
#elif defined(MAGNITUDES)
#define BEFORE(v) ((v) < 0 ? -(v) : (v))
#else
#define BEFORE(v) (v)
#endif

#if defined(MEAN)
#define AFTER(v, n) ((v) / (n))
#elif defined(ROOT)
#define AFTER(v, n) sqrt(v)
#elif defined(LOGARITHM)
#define AFTER(v, n) log(v)
#else
#define AFTER(v, n) (v)
#endif

#define LOCAL_INDEX (int)get_local_id(0)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void reduce_rows(
    __global const X* restrict x, __global Y* restrict y, const long depth, const long chunk,
    const long chunks, const float count
) {
  __local T partial[ITEMS];
  const size_t group = get_group_id(0);
  const size_t row = group / chunks;
  const long begin = (long)(group % chunks) * chunk;
  const long end = min(depth, begin + chunk);
  __global const X* from = x + row * depth;
  T result = START;
  for (long i = begin + LOCAL_INDEX; i < end; i += ITEMS) {
    const T e = GET_X(from, i), v = BEFORE(e);
    result = JOIN(result, v);
  }
  partial[LOCAL_INDEX] = result;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (LOCAL_INDEX < step) {
      const T a = partial[LOCAL_INDEX], b = partial[LOCAL_INDEX + step];
      partial[LOCAL_INDEX] = JOIN(a, b);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (LOCAL_INDEX == 0) PUT_Y(y, group, AFTER(partial[0], count));
}

__kernel __attribute__((reqd_work_group_size(COLUMNS, ITEMS, 1)))
void reduce_columns(
    __global const X* restrict x, __global Y* restrict y, const long outer, const long depth,
    const long inner, const long chunk, const long chunks, const float count
) {
  const int lane = get_local_id(0), lid = get_local_id(1);
  const size_t at = get_group_id(0) * COLUMNS + lane;
  const bool inside = at < (size_t)(outer * chunks * inner);  // all items reach the barriers
  const long column = (long)(at % inner);
  const long row = (long)(at / inner);
  const long begin = row % chunks * chunk;
  const long end = inside ? min(depth, begin + chunk) : begin;
  __global const X* from = x + row / chunks * depth * inner + column;
  T result = START;
  for (long i = begin + lid; i < end; i += ITEMS) {
    const T e = GET_X(from, i * inner), v = BEFORE(e);
    result = JOIN(result, v);
  }
#if ITEMS > 1
  __local T partial[ITEMS][COLUMNS];
  partial[lid][lane] = result;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (lid < step) {
      const T a = partial[lid][lane], b = partial[lid + step][lane];
      partial[lid][lane] = JOIN(a, b);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  result = partial[0][lane];
#endif
  if (inside && lid == 0) PUT_Y(y, at, AFTER(result, count));
}
