// Images between channels first and channels last, float or half on either side: an item moves eight
// channels of one pixel, which are neighbours where channels are last; neighbouring items have
// neighbouring pixels. Channels in memory are filled up by zeros.
//
// Options: FROM_HALF, TO_HALF  the element types; FEW: an item moves the at most four channels of a
//          pixel of a padded image

#ifdef FROM_HALF
#define SOURCE half
#define READ(p, i) GET_HALF(p, i)
#else
#define SOURCE float
#define READ(p, i) (p)[i]
#endif
#ifdef TO_HALF
#define TARGET half
#define WRITE(p, i, v) PUT_HALF(p, i, v)
#else
#define TARGET float
#define WRITE(p, i, v) (p)[i] = (v)
#endif

__kernel void to_channels_last(
    __global const SOURCE* restrict x, __global TARGET* restrict y, const int images,
    const int channels, const int pixels, const int pitch, const int4 size, const int4 padded
) {
#ifdef FEW
  // size: x and y of the image, the pads before them; padded: x and y of the padded image.
  const int p = get_global_id(0);
  if (p >= padded.x * padded.y) return;
  const int ix = p % padded.x - size.z, iy = p / padded.x - size.w;
  const bool inside = (uint)ix < (uint)size.x && (uint)iy < (uint)size.y;
  for (size_t n = get_global_id(2); n < (size_t)images; n += get_global_size(2)) {
    __global const SOURCE* from = x + n * channels * pixels + iy * size.x + ix;
    float v[4];
    #pragma unroll
    for (int c = 0; c < 4; c++)
      v[c] = inside && c < channels ? READ(from, (size_t)c * pixels) : 0.0f;
    PUT_HALF4(y, (n * padded.x * padded.y + p) * 4, ((float4)(v[0], v[1], v[2], v[3])));
  }
#else
  const int p = get_global_id(0);
  if (p >= pixels) return;
  const int units = pitch / 8;
  for (size_t n = get_global_id(2); n < (size_t)images; n += get_global_size(2))
    for (int unit = get_global_id(1); unit < units; unit += get_global_size(1)) {
      __global const SOURCE* from = x + (n * channels + unit * 8) * pixels + p;
      float v[8];
      #pragma unroll
      for (int c = 0; c < 8; c++)
        v[c] = unit * 8 + c < channels ? READ(from, (size_t)c * pixels) : 0.0f;
      PUT_HALF8(y, (n * pixels + p) * pitch + unit * 8, v);
    }
#endif
}

__kernel void to_channels_first(
    __global const SOURCE* restrict x, __global TARGET* restrict y, const int images,
    const int channels, const int pixels, const int pitch
) {
  const int p = get_global_id(0);
  if (p >= pixels) return;
  const int units = pitch / 8;
  for (size_t n = get_global_id(2); n < (size_t)images; n += get_global_size(2))
    for (int unit = get_global_id(1); unit < units; unit += get_global_size(1)) {
      float v[8];
      GET_HALF8(v, x, (n * pixels + p) * pitch + unit * 8);
      __global TARGET* to = y + (n * channels + unit * 8) * pixels + p;
      #pragma unroll
      for (int c = 0; c < 8; c++)
        if (unit * 8 + c < channels) WRITE(to, (size_t)c * pixels, v[c]);
    }
}
