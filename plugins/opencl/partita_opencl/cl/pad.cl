// Pad and crop: an item writes one element of the result. Dimension 0 is the innermost one.
//
// Options: T  an unsigned type of the element's size, and one of CONSTANT, REFLECT, EDGE, WRAP

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
    const int8 before, const long count, __global const T* restrict fill
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  long rest = (long)at, from = 0, step = 1;
  bool inside = true;
  #define PEEL(n) { const long c = source(rest % out_size.s##n - before.s##n, in_size.s##n); \
                    rest /= out_size.s##n; inside = inside && c >= 0; \
                    from += c * step; step *= in_size.s##n; }
  PEEL(0) PEEL(1) PEEL(2) PEEL(3) PEEL(4) PEEL(5) PEEL(6) PEEL(7)
#ifdef CONSTANT
  y[at] = inside ? x[from] : fill[0];
#else
  y[at] = x[from];
#endif
}
