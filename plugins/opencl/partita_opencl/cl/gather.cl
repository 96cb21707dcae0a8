// Selection by index. An index out of bounds reads nothing: it leaves `mark` in `fault`, where the
// engine finds it after the run, and the element becomes zero.
//
// Options: T  an unsigned type of the element's size, I  the index type

// The row for an index that may count from the end, or -1.
long row_of(const I index, const long size) {
  const long row = index < 0 ? index + size : index;
  return row < 0 || row >= size ? -1 : row;
}

// y[outer][index][inner] = x[outer][indices[index]][inner]
__kernel void gather(
    __global const T* restrict x, __global const I* restrict indices, __global T* restrict y,
    volatile __global int* restrict fault, const long count, const long size, const long inner,
    const long indices_count, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const size_t column = at % inner, row = at / inner;
  const long from = row_of(indices[row % indices_count], size);
  if (from < 0) {
    atomic_cmpxchg(fault, 0, mark);
    y[at] = 0;
  } else {
    y[at] = x[((row / indices_count) * size + from) * inner + column];
  }
}

// y[outer][index][inner] = x[outer][indices[outer][index][inner]][inner]
__kernel void gather_elements(
    __global const T* restrict x, __global const I* restrict indices, __global T* restrict y,
    volatile __global int* restrict fault, const long count, const long size, const long inner,
    const long axis_count, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long from = row_of(indices[at], size);
  if (from < 0) {
    atomic_cmpxchg(fault, 0, mark);
    y[at] = 0;
  } else {
    y[at] = x[(at / inner / axis_count * size + from) * inner + at % inner];
  }
}

// y[outer][indices[outer][index][inner]][inner] = x[outer][index][inner]
__kernel void scatter_elements(
    __global const T* restrict x, __global const I* restrict indices, __global T* restrict y,
    volatile __global int* restrict fault, const long count, const long size, const long inner,
    const long axis_count, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long to = row_of(indices[at], size);
  if (to < 0) atomic_cmpxchg(fault, 0, mark);
  else y[(at / inner / axis_count * size + to) * inner + at % inner] = x[at];
}
