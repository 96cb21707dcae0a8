// Depthwise convolution (one input channel per group, `multiplier` outputs each): an item computes
// one output pixel; items of a row read neighbouring pixels.
//
// Options: KX, KY, KZ  window sizes, so that the loops unroll

__kernel void conv_depthwise(
    __global const float* restrict x, __global const float* restrict w,
    __global const float* restrict bias, __global const float* restrict residual,
    __global float* restrict y,
    const int4 in_size, const int4 out_size,  // x, y, z and channels
    const int4 stride, const int4 pad, const int4 dilation, const int images,
    const int has_bias, const int has_residual, const int activation, const float alpha,
    const float beta
) {
  const int pixels = out_size.x * out_size.y * out_size.z;
  const int p = get_global_id(0);
  if (p >= pixels) return;
  const int ox = p % out_size.x;
  const int oy = (p / out_size.x) % out_size.y;
  const int oz = p / (out_size.x * out_size.y);
  const int x0 = ox * stride.x - pad.x, y0 = oy * stride.y - pad.y, z0 = oz * stride.z - pad.z;
  const int multiplier = out_size.w / in_size.w;
  const size_t planes = (size_t)images * out_size.w;
  for (size_t plane = get_global_id(1); plane < planes; plane += get_global_size(1)) {
    const int channel = (int)(plane % out_size.w);
    const size_t image = plane / out_size.w;
    __global const float* from =
        x + (image * in_size.w + channel / multiplier) * ((size_t)in_size.z * in_size.y * in_size.x);
    __global const float* taps = w + (size_t)channel * (KZ * KY * KX);
    float sum = has_bias ? bias[channel] : 0.0f;
    for (int kz = 0; kz < KZ; kz++) {
      const int iz = z0 + kz * dilation.z;
      for (int ky = 0; ky < KY; ky++) {
        const int iy = y0 + ky * dilation.y;
        const bool row_inside = (uint)iz < (uint)in_size.z && (uint)iy < (uint)in_size.y;
        #pragma unroll
        for (int kx = 0; kx < KX; kx++) {
          const int ix = x0 + kx * dilation.x;
          if (row_inside && (uint)ix < (uint)in_size.x)
            sum = fma(taps[(kz * KY + ky) * KX + kx],
                      from[(iz * in_size.y + iy) * in_size.x + ix], sum);
        }
      }
    }
    const size_t at = plane * pixels + p;
    if (has_residual) sum += residual[at];
    y[at] = activate(sum, activation, alpha, beta);
  }
}
