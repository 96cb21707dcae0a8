// Element-wise operations fused into one kernel. The generated part defines
//   OUT, STORE, STORE4  element type of the result, and how one or four elements are stored
//   PARAMETERS          the inputs: buffers x0.., scalars x1.., and steps k0.. of broadcast buffers
//   chain(v0, v1, ...)  the result for one element of each input
//   VALUES              the inputs' elements for output element i
//   QUADS, QUAD(s)      loads of four elements each, and element s of them (chain_flat only)
//   BASES, ADVANCE(n, c)  offsets b0.. of broadcast buffers (chain_grid only)
//
// Options: GRID with DIMS 2, 3 or 8; else WIDTH 1 or 4 elements per item

// A float rounded to half precision; half values are floats in registers.
float rounded_to_half(const float x) {
  ushort bits;
  vstore_half(x, 0, (__private half*)&bits);
  return vload_half(0, (__private const half*)&bits);
}

// The nearest number between bounds, of either sign; 0 and infinities stay.
float held_between(const float least, const float most, const float x) {
  const float size = fabs(x);
  if (size > most && size < INFINITY) return copysign(most, x);
  return size > 0.0f && size < least ? copysign(least, x) : x;
}

/*@generated@*/

#ifdef GRID

__kernel void chain_grid(
    __global OUT* restrict y, const int8 size, const long outer PARAMETERS
) {
  const int c0 = get_global_id(0);
  if (c0 >= size.s0) return;
  for (long rest = get_global_id(2); rest < outer; rest += get_global_size(2)) {
    BASES
#if DIMS == 3
    ADVANCE(2, rest)
#elif DIMS == 8
    long r = rest;
    #define PEEL(n) { const long c = r % size.s##n; r /= size.s##n; ADVANCE(n, c) }
    PEEL(2) PEEL(3) PEEL(4) PEEL(5) PEEL(6)
    ADVANCE(7, r)
#endif
    for (uint c1 = get_global_id(1); c1 < (uint)size.s1; c1 += get_global_size(1)) {
      const size_t i = ((size_t)rest * size.s1 + c1) * size.s0 + c0;
      STORE(i, chain(VALUES));
    }
  }
}

#else

__kernel void chain_flat(__global OUT* restrict y, const long count PARAMETERS) {
  const size_t item = get_global_id(0);
#if WIDTH == 4
  if (item * 4 + 4 <= (size_t)count) {
    QUADS
    STORE4(item, chain(QUAD(s0)), chain(QUAD(s1)), chain(QUAD(s2)), chain(QUAD(s3)));
    return;
  }
#endif
  for (size_t i = item * WIDTH; i < min((size_t)count, item * WIDTH + WIDTH); i++)
    STORE(i, chain(VALUES));
}

#endif
