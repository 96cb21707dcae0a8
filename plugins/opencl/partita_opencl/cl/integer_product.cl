// Products of matrices of bytes, less their zero points, summed in int32. A work-group computes a
// tile; its items bring tiles of both operands to local memory.
//
// Options: A, B  types of the matrices, TILE  rows and columns of a group
//   A_ZEROS, B_ZEROS  there are zero points; ROW_ZEROS, COLUMN_ZEROS  one for each row or column
//   ONE_B  all products have the same right matrix

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void integer_product(
    __global const A* restrict a, __global const B* restrict b, __global const A* restrict a_zero,
    __global const B* restrict b_zero, __global int* restrict y, const int rows, const int columns,
    const int depth
) {
  __local int left[TILE][TILE + 1], right[TILE][TILE + 1];
  const int wide = (columns + TILE - 1) / TILE, high = (rows + TILE - 1) / TILE;
  const size_t group = get_group_id(0), batch = group / wide / high;
  const int x = get_local_id(0), lid = get_local_id(1);
  const int column = (int)(group % wide) * TILE + x, row = (int)(group / wide % high) * TILE + lid;
  a += batch * rows * depth;
#ifndef ONE_B
  b += batch * depth * columns;
#endif
  int own_a = 0, own_b = 0;
#ifdef A_ZEROS
#ifdef ROW_ZEROS
  if (row < rows) own_a = a_zero[row];
#else
  own_a = a_zero[0];
#endif
#endif
#ifdef B_ZEROS
#ifdef COLUMN_ZEROS
  if (column < columns) own_b = b_zero[column];
#else
  own_b = b_zero[0];
#endif
#endif
  uint sum = 0;  // which wraps around, as signed numbers may not
  for (int begin = 0; begin < depth; begin += TILE) {
    const int i = begin + x, j = begin + lid;
    left[lid][x] = row < rows && i < depth ? (int)a[(size_t)row * depth + i] - own_a : 0;
    right[lid][x] =
        column < columns && j < depth ? (int)b[(size_t)j * columns + column] - own_b : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int n = 0; n < TILE; n++) sum += (uint)(left[lid][n] * right[n][x]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (row < rows && column < columns) y[(batch * rows + row) * columns + column] = (int)sum;
}
