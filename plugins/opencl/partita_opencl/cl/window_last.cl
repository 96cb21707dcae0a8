// Windows over images of halves with channels last, channel by channel: depthwise convolutions and
// pools. An item computes eight channels of a pixel; neighbouring items have neighbouring channels.
//
// Options: one of WEIGH (a convolution by w[tap][channel]), AVERAGE, or else the maximum; ACTIVATION

__kernel void window_last(
    __global const half* restrict x,
#ifdef WEIGH
    __global const half* restrict w, __global const float* restrict bias,
    __global const half* restrict residual,
#endif
    __global half* restrict y, const int images, const int pitch, const int4 size,  // in, out: x, y
    const int4 window,  // taps in x and y, dilation in x and y
    const int4 step,    // stride in x and y, pad in x and y
    // Average only: 1 counts positions in the padding too, up to the end of the padded image.
    const int count_padding, const int2 pad_end, const int has_residual, const float alpha,
    const float beta
) {
  const int units = pitch / 8;
  const int at = get_global_id(0);
  if (at >= units * size.z) return;
  const int c = at % units * 8, ox = at / units;
  const int x0 = ox * step.x - step.z;
  for (size_t row = get_global_id(1); row < (size_t)images * size.w; row += get_global_size(1)) {
    const size_t n = row / size.w;
    const int y0 = (int)(row % size.w) * step.y - step.w;
    float v[8];
    int count = 0;
    #pragma unroll
    for (int q = 0; q < 8; q++)
#if defined(WEIGH)
      v[q] = bias[c + q];
#elif defined(AVERAGE)
      v[q] = 0.0f;
#else
      v[q] = -INFINITY;
#endif
    for (int ky = 0; ky < window.y; ky++) {
      const int iy = y0 + ky * window.w;
      for (int kx = 0; kx < window.x; kx++) {
        const int ix = x0 + kx * window.z;
        const bool inside = (uint)ix < (uint)size.x && (uint)iy < (uint)(size.y);
        count += inside || (count_padding && ix < size.x + pad_end.x && iy < size.y + pad_end.y);
        if (!inside) continue;
        float u[8];
        GET_HALF8(u, x, ((n * size.y + iy) * size.x + ix) * pitch + c);
#if defined(WEIGH)
        float f[8];
        GET_HALF8(f, w, (ky * window.x + kx) * pitch + c);
        #pragma unroll
        for (int q = 0; q < 8; q++) v[q] = fma(f[q], u[q], v[q]);
#elif defined(AVERAGE)
        #pragma unroll
        for (int q = 0; q < 8; q++) v[q] += u[q];
#else
        #pragma unroll
        for (int q = 0; q < 8; q++) v[q] = u[q] > v[q] || isnan(u[q]) ? u[q] : v[q];
#endif
      }
    }
    const size_t to = (row * size.z + ox) * pitch + c;
#if defined(WEIGH)
    if (has_residual) {
      float u[8];
      GET_HALF8(u, residual, to);
      #pragma unroll
      for (int q = 0; q < 8; q++) v[q] += u[q];
    }
    #pragma unroll
    for (int q = 0; q < 8; q++) v[q] = activate(v[q], ACTIVATION, alpha, beta);
#elif defined(AVERAGE)
    #pragma unroll
    for (int q = 0; q < 8; q++) v[q] /= (float)count;
#endif
    PUT_HALF8(y, to, v);
  }
}

// The mean or maximum of each channel of an image: a group computes UNITS times eight channels, by
// ITEMS / UNITS items each.
#ifdef UNITS
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void whole_image_last(
    __global const half* restrict x, __global half* restrict y, const int pixels, const int pitch
) {
  __local float partial[ITEMS][9];
  const int lid = get_local_id(0), unit = lid % UNITS, lane = lid / UNITS;
  const int blocks = (pitch / 8 + UNITS - 1) / UNITS;
  const size_t n = get_group_id(0) / blocks;
  const int c = ((int)(get_group_id(0) % blocks) * UNITS + unit) * 8;
  float v[8];
  for (int q = 0; q < 8; q++)
#ifdef AVERAGE
    v[q] = 0.0f;
#else
    v[q] = -INFINITY;
#endif
  if (c < pitch)
    for (int p = lane; p < pixels; p += ITEMS / UNITS) {
      float u[8];
      GET_HALF8(u, x, (n * pixels + p) * pitch + c);
      #pragma unroll
      for (int q = 0; q < 8; q++)
#ifdef AVERAGE
        v[q] += u[q];
#else
        v[q] = u[q] > v[q] || isnan(u[q]) ? u[q] : v[q];
#endif
    }
  for (int q = 0; q < 8; q++) partial[lid][q] = v[q];
  for (int step = ITEMS / UNITS / 2; step > 0; step /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane < step)
      for (int q = 0; q < 8; q++) {
        const float a = partial[lid][q], b = partial[lid + step * UNITS][q];
#ifdef AVERAGE
        partial[lid][q] = a + b;
#else
        partial[lid][q] = b > a || isnan(b) ? b : a;
#endif
      }
  }
  if (lane == 0 && c < pitch) {
    for (int q = 0; q < 8; q++)
#ifdef AVERAGE
      v[q] = partial[lid][q] / (float)pixels;
#else
      v[q] = partial[lid][q];
#endif
    PUT_HALF8(y, n * pitch + c, v);
  }
}
#endif
