// Elements written to places that indices name. An index out of bounds writes nothing: it leaves
// `mark` in `fault`, where the engine finds it after the run. Of several elements for one place any
// stays, or all are joined, in any order.
//
// Options: I  the index type, DEPTH  coordinates of a tuple
//   T  an unsigned type of the element's size, or the type itself, of 32 bits, where there is one of
//   SUM, PRODUCT, MINIMUM, MAXIMUM  how elements are combined with the old ones

#include "index_places.cl"

#if defined(SUM)
#define JOIN(a, b) ((a) + (b))
#elif defined(PRODUCT)
#define JOIN(a, b) ((a) * (b))
#elif defined(MINIMUM)
#define JOIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#elif defined(MAXIMUM)
#define JOIN(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#endif

#ifdef JOIN
typedef union { T element; uint bits; } Cell;

// Tries until no other item has written in between.
void put(volatile __global T* place, const T element) {
  volatile __global uint* cell = (volatile __global uint*)place;
  Cell before, after;
  before.bits = *cell;
  while (true) {
    after.element = JOIN(before.element, element);
    const uint found = atomic_cmpxchg(cell, before.bits, after.bits);
    if (found == before.bits) return;
    before.bits = found;
  }
}
#else
void put(volatile __global T* place, const T element) { *place = element; }
#endif

// y[outer][indices[outer][index][inner]][inner] = x[outer][index][inner]
__kernel void scatter_elements(
    __global const T* restrict x, __global const I* restrict indices, volatile __global T* y,
    volatile __global int* restrict fault, const long count, const long size, const long inner,
    const long axis_count, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long to = row_of(indices[at], size);
  if (to < 0) atomic_cmpxchg(fault, 0, mark);
  else put(y + (at / inner / axis_count * size + to) * inner + at % inner, x[at]);
}

#ifdef DEPTH
// y[coordinates][inner] = x[tuple][inner]
__kernel void scatter_tuples(
    __global const T* restrict x, __global const I* restrict indices, volatile __global T* y,
    volatile __global int* restrict fault, const long count, const long inner, const long8 limits,
    const long8 steps, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long to = slice_of(indices + at / inner * DEPTH, limits, steps);
  if (to < 0) atomic_cmpxchg(fault, 0, mark);
  else put(y + to * inner + at % inner, x[at]);
}
#endif
