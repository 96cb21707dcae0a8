// Transposed convolution, gathered: an item computes CHANNELS outputs of one pixel from the input
// pixels whose windows cover it. Works for 1 to 3 spatial dimensions.
//
// Options: CHANNELS  outputs per item

__kernel void conv_transpose(
    __global const REAL* restrict x, __global const REAL* restrict w,  // w[in][out / groups][kz][ky][kx]
    __global const REAL* restrict bias, __global const REAL* restrict residual,
    __global REAL* restrict y,
    const int4 in_size, const int4 out_size,  // x, y, z, channels
    const int4 window,                        // kx, ky, kz, groups
    const int4 stride, const int4 pad, const int4 dilation, const int images,
    const int has_bias, const int has_residual, const float alpha,
    const float beta
) {
  const int plane = out_size.x * out_size.y, pixels = plane * out_size.z;
  const int p = get_global_id(0);
  if (p >= pixels) return;
  const int px = p % out_size.x + pad.x, py = p % plane / out_size.x + pad.y;
  const int pz = p / plane + pad.z;
  const int in_channels = in_size.w / window.w, out_channels = out_size.w / window.w;
  const int in_pixels = in_size.x * in_size.y * in_size.z;
  const int window_size = window.x * window.y * window.z;
  const int blocks = (out_channels + CHANNELS - 1) / CHANNELS;
  const size_t all = (size_t)images * window.w * blocks;
  for (size_t job = get_global_id(1); job < all; job += get_global_size(1)) {
    const int c0 = (int)(job % blocks) * CHANNELS;
    const int group = (int)((job / blocks) % window.w);
    const size_t image = job / ((size_t)blocks * window.w);
    __global const REAL* from = x + (image * in_size.w + group * in_channels) * (size_t)in_pixels;
    __global const REAL* taps = w + (size_t)group * in_channels * out_channels * window_size;
    float sums[CHANNELS];
    #pragma unroll
    for (int c = 0; c < CHANNELS; c++) sums[c] = 0.0f;
    for (int kz = 0; kz < window.z; kz++) {
      const int dz = pz - kz * dilation.z;
      if (dz < 0 || dz % stride.z != 0 || dz / stride.z >= in_size.z) continue;
      for (int ky = 0; ky < window.y; ky++) {
        const int dy = py - ky * dilation.y;
        if (dy < 0 || dy % stride.y != 0 || dy / stride.y >= in_size.y) continue;
        const int row = (dz / stride.z * in_size.y + dy / stride.y) * in_size.x;
        for (int kx = 0; kx < window.x; kx++) {
          const int dx = px - kx * dilation.x;
          if (dx < 0 || dx % stride.x != 0 || dx / stride.x >= in_size.x) continue;
          __global const REAL* at = from + row + dx / stride.x;
          __global const REAL* tap =
              taps + (size_t)c0 * window_size + (kz * window.y + ky) * window.x + kx;
          for (int i = 0; i < in_channels; i++) {
            const float v = GET(at, (size_t)i * in_pixels);
            #pragma unroll
            for (int c = 0; c < CHANNELS; c++)
              sums[c] = fma(v, GET(tap, min(c, out_channels - 1 - c0) * window_size), sums[c]);
            tap += (size_t)out_channels * window_size;
          }
        }
      }
    }
    #pragma unroll
    for (int c = 0; c < CHANNELS; c++) {
      if (c0 + c >= out_channels) continue;
      const int channel = group * out_channels + c0 + c;
      const size_t at = (image * out_size.w + channel) * pixels + p;
      float v = sums[c] + (has_bias ? GET(bias, channel) : 0.0f);
      if (has_residual) v += GET(residual, at);
      PUT(y, at, activate(v, ACTIVATION, alpha, beta));
    }
  }
}
