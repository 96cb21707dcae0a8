// Rows of a table of a few bits per element, in blocks that share a scale: y[index][i] =
// scale * (table[indices[index]][i] - zero). An index out of bounds gives zeros, as in ONNX Runtime.
//
// Options: I  the index type, BITS  4 or 8: the first element of a byte is in its lower bits
//   ZEROS  each block has a zero of its own, written as elements are; otherwise it is `zero`

int number_of(__global const uchar* bytes, const long element) {
#if BITS == 4
  return bytes[element / 2] >> (int)(element % 2 * 4) & 15;
#else
  return bytes[element];
#endif
}

__kernel void gather_blocks(
    __global const uchar* restrict table, __global const I* restrict indices,
    __global const REAL* restrict scales, __global const uchar* restrict zeros,
    __global REAL* restrict y, const long count,
    const long size,   // rows of the table
    const long lines,  // of a row; a line has blocks, and begins with a byte of its own
    const int line,    // elements of a line, a whole number of bytes
    const int block, const int blocks, const int zero
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const int i = at % line;
  const long index = indices[at / line / lines];
  const long row = index < 0 ? index + size : index;
  if (row < 0 || row >= size) {
    PUT(y, at, 0.0f);
    return;
  }
  const size_t from = row * lines + at / line % lines;
#ifdef ZEROS
  const int bytes_of_zeros = (blocks * BITS + 7) / 8;
  const int offset = number_of(zeros + from * bytes_of_zeros, i / block);
#else
  const int offset = zero;
#endif
  const int number = number_of(table + from * ((size_t)line * BITS / 8), i);
  PUT(y, at, GET(scales, from * blocks + i / block) * (float)(number - offset));
}
