// The largest or smallest elements of rows, in order; of equal ones the first.
//
// Options: T  type of elements in registers, FLOATS  where these are floating-point numbers
//   SMALLEST (else the largest), ITEMS (a power of two)

#ifdef HALF
#define M half
#else
#define M T
#endif

// A number by which elements are ordered.
long key_of(const T v) {
#ifdef FLOATS
  const int bits = as_int(v == 0.0f ? 0.0f : v);
  const long key = bits < 0 ? bits ^ 0x7fffffff : bits;
#else
  const long key = v;
#endif
#ifdef SMALLEST
  return ~key;
#else
  return key;
#endif
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void top_k(
    __global const M* restrict x, __global M* restrict y, __global long* restrict places,
    const int depth, const int count
) {
  __local long keys[ITEMS];
  __local int ats[ITEMS];
  const size_t row = get_group_id(0);
  const int lid = get_local_id(0);
  x += row * depth;
  long last = LONG_MAX;
  int last_at = -1;
  for (int n = 0; n < count; n++) {
    long best = LONG_MIN;
    int at = INT_MAX;
    for (int i = lid; i < depth; i += ITEMS) {
      const long key = key_of(GET(x, i));
      const bool is_left = key < last || (key == last && i > last_at);
      if (is_left && (key > best || at == INT_MAX)) {
        best = key;
        at = i;
      }
    }
    keys[lid] = best;
    ats[lid] = at;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = ITEMS / 2; step > 0; step /= 2) {
      if (lid < step) {
        const long other = keys[lid + step];
        const int other_at = ats[lid + step];
        if (other > keys[lid] || (other == keys[lid] && other_at < ats[lid])) {
          keys[lid] = other;
          ats[lid] = other_at;
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    last = keys[0];
    last_at = ats[0];
    if (lid == 0) {
      places[row * count + n] = last_at;
      PUT(y, row * count + n, GET(x, last_at));
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
