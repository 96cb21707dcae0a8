// Maximum and average pooling over windows of up to three dimensions: an item computes one output.
//
// Options: AVERAGE, else maximum

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
  const int x0 = (p % out_size.x) * stride.x - pad.x;
  const int y0 = ((p / out_size.x) % out_size.y) * stride.y - pad.y;
  const int z0 = (p / (out_size.x * out_size.y)) * stride.z - pad.z;
  for (size_t plane = get_global_id(1); plane < (size_t)planes; plane += get_global_size(1)) {
    __global const REAL* from = x + plane * ((size_t)in_size.z * in_size.y * in_size.x);
#ifdef AVERAGE
    float result = 0.0f;
    int count = 0;
#else
    float result = -INFINITY;
#endif
    for (int kz = 0; kz < window.z; kz++) {
      const int iz = z0 + kz * dilation.z;
      for (int ky = 0; ky < window.y; ky++) {
        const int iy = y0 + ky * dilation.y;
        for (int kx = 0; kx < window.x; kx++) {
          const int ix = x0 + kx * dilation.x;
          const bool inside = (uint)ix < (uint)in_size.x && (uint)iy < (uint)in_size.y &&
                              (uint)iz < (uint)in_size.z;
#ifdef AVERAGE
          if (inside) result += GET(from, (iz * in_size.y + iy) * in_size.x + ix);
          count += inside || (count_padding && ix < in_size.x + pad_end.x &&
                              iy < in_size.y + pad_end.y && iz < in_size.z + pad_end.z);
#else
          if (inside) {
            const float v = GET(from, (iz * in_size.y + iy) * in_size.x + ix);
            result = v > result || isnan(v) ? v : result;
          }
#endif
        }
      }
    }
#ifdef AVERAGE
    result /= (float)count;
#endif
    PUT(y, plane * pixels + p, result);
  }
}
