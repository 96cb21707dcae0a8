// Elements named by indices. To be included; options: I  the index type, DEPTH  coordinates of a tuple

// The row for an index that may count from the end, or -1.
long row_of(const I index, const long size) {
  const long row = index < 0 ? index + size : index;
  return row < 0 || row >= size ? -1 : row;
}

#ifdef DEPTH
// The slice at a tuple of coordinates in a box of slices, or -1.
long slice_of(__global const I* tuple, const long8 limits, const long8 steps) {
  const long* limit = (const long*)&limits;
  const long* step = (const long*)&steps;
  long slice = 0;
  for (int d = 0; d < DEPTH; d++) {
    const long row = row_of(tuple[d], limit[d]);
    if (row < 0) return -1;
    slice += row * step[d];
  }
  return slice;
}
#endif
