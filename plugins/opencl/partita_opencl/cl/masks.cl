// Elements that are chosen by their own place.
//
// Options: T  an unsigned type of the element's size, I  type of indices in registers, INDEX_HALF
//   they are float16 in memory, FLOATS  they are floating-point numbers, UPPER  the upper triangle, else the lower one

#ifdef INDEX_HALF
#define INDEX half
#define GET_INDEX(p, i) GET_HALF(p, i)
#else
#define INDEX I
#define GET_INDEX(p, i) (p)[i]
#endif

// y[outer][place][inner] is the second value where place is the index at [outer][inner].
__kernel void one_hot(
    __global const INDEX* restrict indices, __global const T* restrict values,
    __global T* restrict y, const long count, const long depth, const long inner
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long row = at / inner, place = row % depth;
  const I index = GET_INDEX(indices, row / depth * inner + at % inner);
#ifdef FLOATS
  // Only values in range are cast: others, and NaN, name no element.
  long named = index < depth && index >= -depth ? (long)index : depth;
#else
  long named = (long)index;
#endif
  if (named < 0) named += depth;
  y[at] = values[named == place];
}

// Of matrices the triangle from a diagonal on, zeros elsewhere.
__kernel void triangle(
    __global const T* restrict x, __global const long* restrict diagonal, __global T* restrict y,
    const long count, const long rows, const long columns
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long column = at % columns, row = at / columns % rows;
#ifdef UPPER
  const bool kept = column - row >= diagonal[0];
#else
  const bool kept = column - row <= diagonal[0];
#endif
  y[at] = kept ? x[at] : 0;
}
