// The results of attention whose keys were cut: sums, each with its maximum and weight, are joined.
//
// Options: those of cache_tokens.cl; SPLITS

#include "cache_tokens.cl"

__kernel void cache_join(
    __global const float* restrict partial_sums, __global TOKEN* restrict y, const long count
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const int d = at % SIZE;
  __global const float* of_row = partial_sums + at / SIZE * SPLITS * (SIZE + 2);
  float highest = -1e30f, whole = 0.0f, sum = 0.0f;
  for (int s = 0; s < SPLITS; s++) highest = fmax(highest, of_row[s * (SIZE + 2) + SIZE]);
  for (int s = 0; s < SPLITS; s++) {
    __global const float* part = of_row + s * (SIZE + 2);
    const float less = exp(part[SIZE] - highest);
    whole += less * part[SIZE + 1];
    sum += less * part[d];
  }
  PUT_TOKEN(y, at, whole > 0.0f ? sum / whole : 0.0f);
}
