// Normalization of few long rows, as those of GroupNormalization: work-groups share a row. The first
// kernel leaves mean and squared deviation of each part, of which groups of the second one have the
// row's (Chan, Golub, LeVeque 1979), and normalize a part each.
//
// Element j of row r lies at rows.x * (r / rows.z) + rows.y * (r % rows.z) + j / line.x * line.y +
// j % line.x.
//
// Options: ITEMS (a power of two)
//   LAST  element j has scale [r % channels * row_step + j % line.x], else
//         [r % channels * row_step + j / element_div]

#include "group_sum.cl"

#define START(row) (rows.x * ((row) / rows.z) + rows.y * ((row) % rows.z))
#define PLACE(j) (start + (long)((j) / line.x) * line.y + (j) % line.x)

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void part_statistics(
    __global const REAL* restrict x, __global float2* restrict statistics, const int depth,
    const int part, const int parts, const int4 rows, const int2 line
) {
  __local float partial[ITEMS];
  const int lid = get_local_id(0);
  const size_t row = get_group_id(0) / parts;
  const int begin = (int)(get_group_id(0) % parts) * part, end = min(depth, begin + part);
  const long start = START((long)row);
  float sum = 0.0f, squares = 0.0f;
  for (int j = begin + lid; j < end; j += ITEMS) sum += GET(x, PLACE(j));
  const float mean = sum_over_group(partial, lid, sum) / (float)(end - begin);
  for (int j = begin + lid; j < end; j += ITEMS) {
    const float d = GET(x, PLACE(j)) - mean;
    squares += d * d;
  }
  squares = sum_over_group(partial, lid, squares);
  if (lid == 0) statistics[get_group_id(0)] = (float2)(mean, squares);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void normalize_parts(
    __global const REAL* restrict x, __global const float2* restrict statistics,
    __global const REAL* restrict scale, __global const REAL* restrict bias, __global REAL* restrict y,
    const int depth, const int part, const int parts, const int4 rows, const int2 line,
    const int channels, const int row_step, const int element_div, const int has_bias,
    const float epsilon
) {
  __local float partial[ITEMS];
  const int lid = get_local_id(0);
  const size_t row = get_group_id(0) / parts;
  const int begin = (int)(get_group_id(0) % parts) * part, end = min(depth, begin + part);
  const long start = START((long)row);
  float sum = 0.0f, squares = 0.0f;
  for (int i = lid; i < parts; i += ITEMS)
    sum += statistics[row * parts + i].x * (float)(min(depth, (i + 1) * part) - i * part);
  const float mean = sum_over_group(partial, lid, sum) / (float)depth;
  for (int i = lid; i < parts; i += ITEMS) {
    const float2 found = statistics[row * parts + i];
    const float d = found.x - mean;
    squares += found.y + d * d * (float)(min(depth, (i + 1) * part) - i * part);
  }
  const float variance = sum_over_group(partial, lid, squares) / (float)depth;
  const float factor = 1.0f / sqrt(variance + epsilon);
  const int first = (int)(row % channels) * row_step;
  for (int j = begin + lid; j < end; j += ITEMS) {
#ifdef LAST
    const int at = first + j % line.x;
#else
    const int at = first + j / element_div;
#endif
    const float v = (GET(x, PLACE(j)) - mean) * factor * GET(scale, at);
    PUT(y, PLACE(j), v + (has_bias ? GET(bias, at) : 0.0f));
  }
}
