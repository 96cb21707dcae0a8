// Rows of up to eight tensors, side by side in rows of one: an item copies an element of each row.
//
// Options: T  an unsigned type of what an item copies at a time

__kernel void join_rows(
    __global const T* restrict x0, __global const T* restrict x1, __global const T* restrict x2,
    __global const T* restrict x3, __global const T* restrict x4, __global const T* restrict x5,
    __global const T* restrict x6, __global const T* restrict x7, __global T* restrict y,
    const int8 ends,  // of the tensors' parts, counted from the first one's begin
    const long rows, const long pitch, const long start
) {
  const int c = get_global_id(0);
  if (c >= ends.s7) return;
  __global const T* from = x0;
  int begin = 0, end = ends.s0;
#define NEXT(x, last) if (c >= end) { from = x; begin = end; end = last; }
  NEXT(x1, ends.s1) NEXT(x2, ends.s2) NEXT(x3, ends.s3) NEXT(x4, ends.s4)
  NEXT(x5, ends.s5) NEXT(x6, ends.s6) NEXT(x7, ends.s7)
  for (long row = get_global_id(1); row < rows; row += get_global_size(1))
    y[row * pitch + start + c] = from[row * (end - begin) + c - begin];
}
