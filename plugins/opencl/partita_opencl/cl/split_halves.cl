// Rows of float32 as three times as many bfloat16: what rounding drops, then what it keeps, twice. An
// item splits eight neighbours.

__kernel void split_halves(
    __global const float* restrict x, __global half* restrict y, const long eights, const int depth
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)eights) return;
  const size_t row = at * 8 / depth, c = at * 8 % depth;
  const float8 v = *(__global const float8*)(x + at * 8);
  float kept[8], dropped[8];
  vstore8(v, 0, dropped);
  #pragma unroll
  for (int i = 0; i < 8; i++) {
    kept[i] = float_of(bits_of(dropped[i]));
    dropped[i] = isinf(kept[i]) ? 0.0f : dropped[i] - kept[i];
  }
  y += row * 3 * depth + c;
  PUT_HALF8(y, 0, dropped);
  PUT_HALF8(y, depth, kept);
  PUT_HALF8(y, 2 * depth, kept);
}
