// Copies of boxes: element (c0, c1, ...) of a box goes from
//   x[x_start + sum c_i * x_step_i]  to  y[y_start + sum c_i * y_step_i].
// Transpose, Slice, Expand, Tile, Concat, Split, DepthToSpace are all such copies. Dimension 0 is
// the innermost one.
//
// Options: T  an unsigned type of the element's size, DIMS  2, 3 or 8

__kernel void copy_box(
    __global const T* restrict x, __global T* restrict y, const long x_start, const long y_start,
    const int8 size, const long8 x_step, const long8 y_step, const long outer
) {
  const int c0 = get_global_id(0);
  if (c0 >= size.s0) return;
  for (long rest = get_global_id(2); rest < outer; rest += get_global_size(2)) {
    long from = x_start + c0 * x_step.s0, to = y_start + c0 * y_step.s0;
#if DIMS == 3
    from += rest * x_step.s2;
    to += rest * y_step.s2;
#elif DIMS == 8
    long r = rest;
    #define PEEL(n) { const long c = r % size.s##n; r /= size.s##n; \
                      from += c * x_step.s##n; to += c * y_step.s##n; }
    PEEL(2) PEEL(3) PEEL(4) PEEL(5) PEEL(6)
    from += r * x_step.s7;
    to += r * y_step.s7;
#endif
    for (uint c1 = get_global_id(1); c1 < (uint)size.s1; c1 += get_global_size(1))
      y[to + c1 * y_step.s1] = x[from + c1 * x_step.s1];
  }
}
