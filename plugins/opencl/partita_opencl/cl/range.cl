// Numbers in equal steps: y[i] = first + i * step.
//
// Options: T     type of elements, in registers where those in memory are halves
//          WIDE  float, or long for all integers

#ifdef HALF
#define M half
#else
#define M T
#endif

__kernel void count_up(__global M* y, const WIDE first, const WIDE step, const long count) {
  const long i = get_global_id(0);
  if (i < count) PUT(y, i, (T)(first + (WIDE)i * step));
}
