// Pad and crop: an item writes one element of the result. Dimension 0 is the innermost one.
//
// Options: T  an unsigned type of the element's size, DIMS 3 or 8, and one of CONSTANT, REFLECT,
//   EDGE, WRAP

// The input coordinate for output coordinate c shifted by the leading pad, or -1 for the constant.
long source(const long c, const long size) {
#if defined(CONSTANT)
  return c < 0 || c >= size ? -1 : c;
#elif defined(EDGE)
  return clamp(c, 0L, size - 1);
#elif defined(WRAP)
  return (c % size + size) % size;
#else
  if (size == 1) return 0;
  const long period = 2 * (size - 1);
  const long m = (c % period + period) % period;
  return m < size ? m : period - m;
#endif
}

__kernel void pad(
    __global const T* restrict x, __global T* restrict y, const int8 in_size, const int8 out_size,
    const int8 before, const long outer, __global const T* restrict fill
) {
  const int c0 = get_global_id(0);
  if (c0 >= out_size.s0) return;
  const long x0 = source((long)c0 - before.s0, in_size.s0);
  for (long rest = get_global_id(2); rest < outer; rest += get_global_size(2)) {
    long from = 0, step = (long)in_size.s0 * in_size.s1;
    bool inside = x0 >= 0;
    long r = rest;
    #define PEEL(n) { const long c = source(r % out_size.s##n - before.s##n, in_size.s##n); \
                      r /= out_size.s##n; inside = inside && c >= 0; \
                      from += c * step; step *= in_size.s##n; }
#if DIMS == 3
    {
      const long c = source(r - before.s2, in_size.s2);
      inside = inside && c >= 0;
      from += c * step;
    }
#else
    PEEL(2) PEEL(3) PEEL(4) PEEL(5) PEEL(6) PEEL(7)
#endif
    for (uint c1 = get_global_id(1); c1 < (uint)out_size.s1; c1 += get_global_size(1)) {
      const long x1 = source((long)c1 - before.s1, in_size.s1);
      const size_t at = ((size_t)rest * out_size.s1 + c1) * out_size.s0 + c0;
#ifdef CONSTANT
      y[at] = inside && x1 >= 0 ? x[from + x1 * in_size.s0 + x0] : fill[0];
#else
      y[at] = x[from + x1 * in_size.s0 + x0];
#endif
    }
  }
}
