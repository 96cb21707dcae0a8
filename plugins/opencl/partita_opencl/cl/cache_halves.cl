// The valid part of a cache as halves, for as long as matrix units read them. A work-item has eight
// elements of a key and of its value.
//
// Options: those of cache_tokens.cl; HEADS  of keys

#include "cache_tokens.cl"

__kernel void cache_halves(
    __global const CACHE* restrict keys, __global const CACHE* restrict values,
    __global half* restrict half_keys, __global half* restrict half_values,
    __global const LENGTH* restrict lengths, __global const LENGTH* restrict total,
    volatile __global int* restrict fault,
    const int batch, const int tokens, const int places, const int turns, const int mark
) {
  const size_t item = get_global_id(0), unit = item / (SIZE / 8);
  if (unit >= (size_t)batch * HEADS * places) return;
  const int d = item % (SIZE / 8) * 8, row = unit / places / HEADS;
  const int2 span =
      span_of(lengths[row], GET_TOTAL(total), row, tokens, places, turns, fault, mark);
  if ((int)(unit % places) >= span.y) return;
  float elements[8];
  GET_CACHE8(elements, keys + unit * PITCH, d);
  for (int i = 0; i < 8; i++) elements[i] *= SCALE_OF(keys + unit * PITCH);
  PUT_HALF8(half_keys, unit * SIZE + d, elements);
  GET_CACHE8(elements, values + unit * PITCH, d);
  for (int i = 0; i < 8; i++) elements[i] *= SCALE_OF(values + unit * PITCH);
  PUT_HALF8(half_values, unit * SIZE + d, elements);
}
