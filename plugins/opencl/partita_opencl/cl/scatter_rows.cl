// New rows of a cache, at a place of their own for each batch. Rows that belong nowhere are not
// written: they leave `mark` in `fault`, where the engine finds it after the run.
//
// Options: T  an unsigned type of the element's size, CIRCULAR  the first place follows the last

__kernel void scatter_rows(
    __global const T* restrict update, __global const long* restrict starts, __global T* restrict y,
    volatile __global int* restrict fault, const long count, const long parts, const long places,
    const long rows, const long inner, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const long column = at % inner, row = at / inner % rows, part = at / inner / rows;
  long place = starts[part / parts];
#ifdef CIRCULAR
  place %= places;
  place = (place < 0 ? place + places : place) + row;
  place = place < places ? place : place - places;
#else
  if (place < 0 || place > places - rows) {
    atomic_cmpxchg(fault, 0, mark);
    return;
  }
  place += row;
#endif
  y[(part * places + place) * inner + column] = update[at];
}
