// Maximum and average pooling over windows of up to three dimensions: an item computes one output.
//
// Options: AVERAGE, else maximum

// How many elements of a window, `step` apart from `start` on, lie before `limit`.
long taps_before(const long limit, const long start, const long step, const long window) {
  return limit <= start ? 0 : min(window, (limit - start + step - 1) / step);
}

__kernel void pool(
    __global const REAL* restrict x, __global REAL* restrict y, const long planes,
    const int4 in_size, const int4 out_size, const int4 window, const int4 stride, const int4 pad,
    const int4 dilation,
    // Average only: 1 counts positions in the padding too, up to the end of the padded image.
    const int count_padding, const int4 pad_end
) {
  const int pixels = out_size.x * out_size.y * out_size.z;
  const int p = get_global_id(0);
  if (p >= pixels) return;
  const long x0 = (long)(p % out_size.x) * stride.x - pad.x;
  const long y0 = (long)((p / out_size.x) % out_size.y) * stride.y - pad.y;
  const long z0 = (long)(p / (out_size.x * out_size.y)) * stride.z - pad.z;
  // Windows may be far larger than the image: only elements inside it are visited.
  const int x_first = taps_before(0, x0, dilation.x, window.x);
  const int y_first = taps_before(0, y0, dilation.y, window.y);
  const int z_first = taps_before(0, z0, dilation.z, window.z);
  const int x_last = taps_before(in_size.x, x0, dilation.x, window.x);
  const int y_last = taps_before(in_size.y, y0, dilation.y, window.y);
  const int z_last = taps_before(in_size.z, z0, dilation.z, window.z);
#ifdef AVERAGE
  const int4 padded = count_padding ? pad_end : 0;
  const int4 begin = count_padding ? 0 : (int4)(x_first, y_first, z_first, 0);
  const float count =
      (float)(taps_before((long)in_size.x + padded.x, x0, dilation.x, window.x) - begin.x) *
      (float)(taps_before((long)in_size.y + padded.y, y0, dilation.y, window.y) - begin.y) *
      (float)(taps_before((long)in_size.z + padded.z, z0, dilation.z, window.z) - begin.z);
#endif
  for (size_t plane = get_global_id(1); plane < (size_t)planes; plane += get_global_size(1)) {
    __global const REAL* from = x + plane * ((size_t)in_size.z * in_size.y * in_size.x);
#ifdef AVERAGE
    float result = 0.0f;
#else
    float result = -INFINITY;
#endif
    for (int kz = z_first; kz < z_last; kz++) {
      const long z = (z0 + (long)kz * dilation.z) * in_size.y;
      for (int ky = y_first; ky < y_last; ky++) {
        const long row = (z + y0 + (long)ky * dilation.y) * in_size.x;
        for (int kx = x_first; kx < x_last; kx++) {
          const float v = GET(from, row + x0 + (long)kx * dilation.x);
#ifdef AVERAGE
          result += v;
#else
          result = v > result || isnan(v) ? v : result;
#endif
        }
      }
    }
#ifdef AVERAGE
    result /= count;
#endif
    PUT(y, plane * pixels + p, result);
  }
}
