// Depthwise convolution (one input channel per group, one or more outputs each): an item computes
// one output pixel; items of a row read neighbouring pixels.
//
// Options: KX, KY, KZ  window sizes, so that the loops unroll; ACTIVATION
//   PADDED  the image is padded already, so that no tap falls outside

__kernel void conv_depthwise(
    __global const REAL* restrict x, __global const REAL* restrict w,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
    __global REAL* restrict y,
    const int4 in_size, const int4 out_size,  // x, y, z and channels
    const int4 stride, const int4 pad, const int4 dilation, const int images,
    const int has_bias, const int has_residual, const float alpha, const float beta
) {
  const int ox = get_global_id(0);
  if (ox >= out_size.x) return;
  const int x0 = ox * stride.x - pad.x;
  const int multiplier = out_size.w / in_size.w;
  const int rows = out_size.y * out_size.z;
  const size_t planes = (size_t)images * out_size.w;
  for (size_t plane = get_global_id(2); plane < planes; plane += get_global_size(2)) {
    const int channel = (int)(plane % out_size.w);
    const size_t image = plane / out_size.w;
    __global const REAL* from =
        x + (image * in_size.w + channel / multiplier) * ((size_t)in_size.z * in_size.y * in_size.x);
    __global const REAL* taps = w + (size_t)channel * (KZ * KY * KX);
    const float start = has_bias ? GET(bias, channel) : 0.0f;
    for (uint row = get_global_id(1); row < (uint)rows; row += get_global_size(1)) {
      const int y0 = (int)row % out_size.y * stride.y - pad.y;
      const int z0 = (int)row / out_size.y * stride.z - pad.z;
      float sum = start;
      #pragma unroll
      for (int kz = 0; kz < KZ; kz++) {
        const int iz = z0 + kz * dilation.z;
        #pragma unroll
        for (int ky = 0; ky < KY; ky++) {
          const int iy = y0 + ky * dilation.y;
          __global const REAL* line = from + ((size_t)iz * in_size.y + iy) * in_size.x;
#ifndef PADDED
          if ((uint)iz >= (uint)in_size.z || (uint)iy >= (uint)in_size.y) continue;
#endif
          #pragma unroll
          for (int kx = 0; kx < KX; kx++) {
            const int ix = x0 + kx * dilation.x;
#ifndef PADDED
            if ((uint)ix < (uint)in_size.x)
#endif
            sum = fma(GET(taps, (kz * KY + ky) * KX + kx), GET(line, ix), sum);
          }
        }
      }
      const size_t at = (plane * rows + row) * out_size.x + ox;
      if (has_residual) sum += GET(residual, at);
      PUT(y, at, activate(sum, ACTIVATION, alpha, beta));
    }
  }
}
