// Normalization of rows: (x - mean) / sqrt(variance + epsilon) * scale + bias, with scale and bias
// per element of the row (LayerNormalization), per row modulo `channels` (InstanceNormalization) or
// per part of a row (GroupNormalization). A row belongs to a work-group.
//
// Options: ITEMS (a power of two), ROOT_MEAN_SQUARE: no mean is subtracted
//   SKIP  the rows are sums of x, `skip` and, if there are such, `addends`; they go to `total`

#include "group_sum.cl"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void normalize_rows(
    __global const REAL* restrict x, __global const REAL* restrict scale,
    __global const REAL* restrict bias, __global REAL* restrict y, const int depth,
    // Scale of element i of a row is scale[(row % channels) * row_step + i / element_div].
    const int channels, const int row_step, const int element_div, const int has_bias,
    const float epsilon
#ifdef SKIP
    , __global const REAL* restrict skip, __global const REAL* restrict addends,
    __global REAL* total, const int has_addends
#endif
) {
  __local float partial[ITEMS];
  const int lid = get_local_id(0);
  const size_t row = get_group_id(0);
  __global REAL* to = y + row * depth;
#ifdef SKIP
  // An item reads again what it wrote itself.
  __global REAL* from = total + row * depth;
  for (int i = lid; i < depth; i += ITEMS) {
    const float sum = GET(x, row * depth + i) + GET(skip, row * depth + i);
    PUT(from, i, sum + (has_addends ? GET(addends, i) : 0.0f));
  }
#else
  __global const REAL* from = x + row * depth;
#endif

#ifdef ROOT_MEAN_SQUARE
  const float mean = 0.0f;
#else
  float sum = 0.0f;
  for (int i = lid; i < depth; i += ITEMS) sum += GET(from, i);
  const float mean = sum_over_group(partial, lid, sum) / (float)depth;
#endif
  float squares = 0.0f;
  for (int i = lid; i < depth; i += ITEMS) {
    const float d = GET(from, i) - mean;
    squares = fma(d, d, squares);
  }
  const float variance = sum_over_group(partial, lid, squares) / (float)depth;
  const float factor = 1.0f / sqrt(variance + epsilon);

  const size_t first = (row % channels) * row_step;
  for (int i = lid; i < depth; i += ITEMS) {
    const size_t at = first + i / element_div;
    const float v = (GET(from, i) - mean) * factor * GET(scale, at);
    PUT(to, i, v + (has_bias ? GET(bias, at) : 0.0f));
  }
}
