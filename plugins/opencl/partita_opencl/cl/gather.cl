// Selection by index. An index out of bounds reads nothing: it leaves `mark` in `fault`, where the
// engine finds it after the run, and the element becomes zero.
//
// Options: T  an unsigned type of the element's size, I  the index type, DEPTH  coordinates of a
//   tuple, TIME_FIRST  steps come before the batch

#include "index_places.cl"

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

#ifdef DEPTH
// y[batch][tuple][inner] = x[batch][coordinates][inner]
__kernel void gather_tuples(
    __global const T* restrict x, __global const I* restrict indices, __global T* restrict y,
    volatile __global int* restrict fault, const long count, const long inner, const long8 limits,
    const long8 steps, const long tuples, const long slices, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const size_t tuple = at / inner;
  const long from = slice_of(indices + tuple * DEPTH, limits, steps);
  if (from < 0) {
    atomic_cmpxchg(fault, 0, mark);
    y[at] = 0;
  } else {
    y[at] = x[(tuple / tuples * slices + from) * inner + at % inner];
  }
}
#endif

// Of (time, batch, inner) or (batch, time, inner), the first `length` steps backwards. A length
// that the sequence does not have leaves it as it is.
__kernel void reverse_sequences(
    __global const T* restrict x, __global const long* restrict lengths, __global T* restrict y,
    volatile __global int* restrict fault, const long count, const long steps, const long second,
    const long inner, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long row = at / inner, high = row / second, low = row % second;
#ifdef TIME_FIRST
  const long time = high, element = low, step = second * inner;
#else
  const long time = low, element = high, step = inner;
#endif
  const long length = lengths[element];
  if (length < 0 || length > steps) {
    atomic_cmpxchg(fault, 0, mark);
    y[at] = x[at];
  } else {
    y[at] = time < length ? x[(long)at + (length - 1 - 2 * time) * step] : x[at];
  }
}
