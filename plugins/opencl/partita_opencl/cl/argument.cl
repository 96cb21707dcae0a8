// Position of the largest or smallest element along the middle of (outer, depth, inner), the first
// or the last one among equals. NaN is passed over, unless it is the first element: that is the
// result then, as where one element is compared after the other.
//
// Options: T type of elements in registers, SMALLEST (else the largest), LAST, ITEMS (a power of two)

#ifdef HALF
#define M half
#else
#define M T
#endif

#ifdef SMALLEST
#define BETTER(a, b) ((a) < (b))
#else
#define BETTER(a, b) ((a) > (b))
#endif

typedef struct { T value; int at; } Best;

// Whether an element is none of those that are compared.
#define PASSED_OVER(e) ((e).value != (e).value && (e).at > 0)

// The better of two, where position a.at < b.at does not have to hold.
Best better_of(const Best a, const Best b) {
  if (b.at < 0 || PASSED_OVER(b) || a.value != a.value) return a;
  if (a.at < 0 || b.value != b.value) return b;
  if (BETTER(a.value, b.value)) return a;
  if (BETTER(b.value, a.value)) return b;
#ifdef LAST
  return a.at > b.at ? a : b;
#else
  return a.at < b.at ? a : b;
#endif
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void argument_rows(__global const M* restrict x, __global long* restrict y, const int depth) {
  __local T values[ITEMS];
  __local int places[ITEMS];
  const size_t row = get_group_id(0);
  const int lid = get_local_id(0);
  Best best = {0, -1};
  for (int i = lid; i < depth; i += ITEMS) {
    const Best next = {GET(x, row * depth + i), i};
    best = better_of(best, next);
  }
  values[lid] = best.value;
  places[lid] = best.at;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (lid < step) {
      const Best a = {values[lid], places[lid]};
      const Best b = {values[lid + step], places[lid + step]};
      const Best c = better_of(a, b);
      values[lid] = c.value;
      places[lid] = c.at;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (lid == 0) y[row] = places[0];
}

__kernel void argument_columns(
    __global const M* restrict x, __global long* restrict y, const long outer, const int depth,
    const long inner
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)(outer * inner)) return;
  __global const M* from = x + (at / inner) * depth * inner + at % inner;
  Best best = {0, -1};
  for (int i = 0; i < depth; i++) {
    const Best next = {GET(from, (size_t)i * inner), i};
    best = better_of(best, next);
  }
  y[at] = best.at;
}
