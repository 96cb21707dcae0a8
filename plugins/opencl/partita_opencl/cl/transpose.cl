// Transpose of the last two dimensions of (planes, rows, columns) through a tile of local memory,
// so that both reading and writing touch neighbouring elements.
//
// Options: T  an unsigned type of the element's size, TILE, STEP  rows of items

__kernel __attribute__((reqd_work_group_size(TILE, STEP, 1)))
void transpose_planes(
    __global const T* restrict x, __global T* restrict y, const int rows, const int columns
) {
  __local T tile[TILE][TILE + 1];
  const int tiles_x = (columns + TILE - 1) / TILE, tiles_y = (rows + TILE - 1) / TILE;
  size_t group = get_group_id(0);
  const int x0 = (int)(group % tiles_x) * TILE;
  group /= tiles_x;
  const int y0 = (int)(group % tiles_y) * TILE;
  const size_t plane = (group / tiles_y) * rows * columns;
  const int lx = get_local_id(0), ly = get_local_id(1);
  for (int i = ly; i < TILE; i += STEP)
    if (y0 + i < rows && x0 + lx < columns)
      tile[i][lx] = x[plane + (size_t)(y0 + i) * columns + x0 + lx];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = ly; i < TILE; i += STEP)
    if (x0 + i < columns && y0 + lx < rows)
      y[plane + (size_t)(x0 + i) * rows + y0 + lx] = tile[lx][i];
}
