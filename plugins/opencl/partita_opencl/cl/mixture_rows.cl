// The experts that tokens choose of a mixture, and where their rows go. A token has a row for each
// expert that it chooses.
//
// Options: EXPERTS  how many there are
//   HIGH   rows of a tile (sort_rows), ITEMS of its one group
//   GIVEN  parts are given (shares_of), NORMALIZED  they are divided by their sum
//   those of gated.cl (gate_rows)

// The parts of the experts that a token chose: of the softmax of its logits, or of what is given.
__kernel void shares_of(
    __global const REAL* restrict logits, __global const REAL* restrict given,
    __global const long* restrict chosen, __global REAL* restrict shares, const int tokens,
    const int used
) {
  const size_t token = get_global_id(0);
  if (token >= (size_t)tokens) return;
  logits += token * EXPERTS;
  given += token * EXPERTS;
  const float top = GET(logits, (int)chosen[token * used]);
  float total = 0.0f;
#ifdef NORMALIZED
  for (int n = 0; n < used; n++) {
    const int expert = chosen[token * used + n];
#ifdef GIVEN
    total += GET(given, expert);
#else
    total += exp(GET(logits, expert) - top);
#endif
  }
  if (total == 0.0f) total = 1.0f;
#elif defined(GIVEN)
  total = 1.0f;
#else
  for (int i = 0; i < EXPERTS; i++) total += exp(GET(logits, i) - top);
#endif
  for (int n = 0; n < used; n++) {
    const int expert = chosen[token * used + n];
#ifdef GIVEN
    PUT(shares, token * used + n, GET(given, expert) / total);
#else
    PUT(shares, token * used + n, exp(GET(logits, expert) - top) / total);
#endif
  }
}

#ifdef HIGH
// The rows in the order of their experts, and tiles of at most HIGH rows of one expert: (expert, its
// first place in the order, rows); those that are not needed have no rows.
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void sort_rows(
    __global const long* restrict chosen, __global int* restrict order,
    __global int4* restrict tiles, const int rows, const int count
) {
  __local int counts[EXPERTS], starts[EXPERTS];
  const int tid = get_local_id(0);
  for (int e = tid; e < EXPERTS; e += ITEMS) counts[e] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < rows; i += ITEMS) atomic_inc(counts + clamp((int)chosen[i], 0, EXPERTS - 1));
  barrier(CLK_LOCAL_MEM_FENCE);
  if (tid == 0) {
    int start = 0, tile = 0;
    for (int e = 0; e < EXPERTS; e++) {
      starts[e] = start;
      for (int first = 0; first < counts[e]; first += HIGH)
        tiles[tile++] = (int4)(e, start + first, min(HIGH, counts[e] - first), 0);
      start += counts[e];
    }
    for (; tile < count; tile++) tiles[tile] = (int4)(0);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < rows; i += ITEMS)
    order[atomic_inc(starts + clamp((int)chosen[i], 0, EXPERTS - 1))] = i;
}
#endif

#ifdef ACTIVATION
#include "gated.cl"

__kernel void gate_rows(
    __global const REAL* restrict gates, __global const REAL* restrict x, __global REAL* restrict y,
    const long count, const float alpha, const float beta
) {
  const size_t at = get_global_id(0);
  if (at < (size_t)count) PUT(y, at, gated(GET(gates, at), GET(x, at), alpha, beta));
}
#endif

// The sum of the rows of each token, each times its share.
__kernel void sum_rows(
    __global const REAL* restrict rows, __global const REAL* restrict shares, __global REAL* restrict y,
    const long count, const int columns, const int used
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const size_t token = at / columns, column = at % columns;
  float sum = 0.0f;
  for (size_t i = token * used; i < (token + 1) * used; i++)
    sum = fma(GET(shares, i), GET(rows, i * columns + column), sum);
  PUT(y, at, sum);
}
