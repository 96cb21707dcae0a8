// Regions of images, each cut in cells: the mean, or the largest term, of samples between pixels that
// are spread evenly over a cell. Neighbouring items compute neighbouring cells. An index that names no
// image leaves `mark` in `fault`, where the engine finds it after the run, and the cells become zero.
//
// Options: I  the index type, LARGEST  the largest term instead of the mean
//   X_HALF, REGIONS_HALF  elements of these are float16 in memory, else float32

#include "image_elements.cl"
#ifdef REGIONS_HALF
#define R half
#define GET_R(p, i) GET_HALF(p, i)
#else
#define R float
#define GET_R(p, i) (p)[i]
#endif

#include "index_places.cl"

// How many samples there are depends on the last bit, as other engines round it.
#pragma OPENCL FP_CONTRACT OFF

#define MOST_SAMPLES 1024
#define LARGEST_COUNT 1e9f

// A quotient, rounded to the nearest number: drivers' may be off by two and a half bits.
float quotient(const float a, const float b) {
  const float q = a / b;
  return isfinite(q) ? fma(fma(-q, b, a), 1.0f / b, q) : q;
}

// The samples of a cell that may lie on an axis of the image, from `low` on and before the result.
int samples_of(
    const float start, const float cell, const float count, const int size, int* low
) {
  *low = 0;
  if (!(count > 0.0f && fabs(start) < INFINITY && cell < INFINITY)) return 0;
  if (!(cell > 0.0f)) return (int)fmin(count, (float)MOST_SAMPLES);
  const float first = floor((-1.0f - start) / cell * count) - 1.0f;
  const float last = ceil((size - start) / cell * count) + 1.0f;
  const float from = fmin(fmax(first, 0.0f), count);
  const float to = fmin(fmax(last, from), count);
  if (!(to < LARGEST_COUNT)) return 0;
  *low = (int)from;
  return (int)fmin(to, from + (float)MOST_SAMPLES * (size + 4));
}

// Where a sample lies on an axis: the pixel before it, and how far behind that it is.
int pixel_of(const float place, const int size, float* behind) {
  const float inside = fmax(place, 0.0f);
  const int pixel = min((int)inside, size - 1);
  *behind = pixel < size - 1 ? inside - pixel : 0.0f;
  return pixel;
}

__kernel void roi_align(
    __global const X* restrict x, __global const R* restrict regions,
    __global const I* restrict images, __global X* restrict y, volatile __global int* restrict fault,
    const int4 size,  // of an image in x and y, cells in x and y
    const int channels, const int count, const long batch, const float scale, const float offset,
    const int ratio, const int mark
) {
  const int at = get_global_id(0), cells = size.z * size.w;
  if (at >= cells) return;
  const float column = at % size.z, line = at / size.z;
  for (long job = get_global_id(1) + get_global_size(1) * get_global_id(2);
       job < (long)count * channels; job += get_global_size(1) * get_global_size(2)) {
    const long region = job / channels, image = row_of(images[region], batch);
    if (image < 0) {
      atomic_cmpxchg(fault, 0, mark);
      PUT_X(y, job * cells + at, 0.0f);
      continue;
    }
    __global const X* from = x + (image * channels + job % channels) * ((long)size.x * size.y);
    const float x0 = GET_R(regions, region * 4) * scale - offset;
    const float y0 = GET_R(regions, region * 4 + 1) * scale - offset;
    float across = GET_R(regions, region * 4 + 2) * scale - offset - x0;
    float down = GET_R(regions, region * 4 + 3) * scale - offset - y0;
    if (offset == 0.0f) {
      across = fmax(across, 1.0f);
      down = fmax(down, 1.0f);
    }
    const float wide = quotient(across, size.z), high = quotient(down, size.w);
    const float over_x = ratio > 0 ? ratio : fmax(ceil(wide), 0.0f);
    const float over_y = ratio > 0 ? ratio : fmax(ceil(high), 0.0f);
    const float left = x0 + column * wide, top = y0 + line * high;
    int first_x, first_y;
    const int last_x = samples_of(left, wide, over_x, size.x, &first_x);
    const int last_y = samples_of(top, high, over_y, size.y, &first_y);
    float total = 0.0f;
#ifdef LARGEST
    // Samples that are left out are 0.
    bool started = last_x - first_x < over_x || last_y - first_y < over_y;
#endif
    for (int b = first_y; b < last_y; b++) {
      const float py = top + (b + 0.5f) * high / over_y;
      for (int a = first_x; a < last_x; a++) {
        const float px = left + (a + 0.5f) * wide / over_x;
        float4 terms = (float4)(0.0f);
        if (size.x && size.y && py >= -1.0f && py <= size.y && px >= -1.0f && px <= size.x) {
          float fx, fy;
          const int row = pixel_of(py, size.y, &fy), place = pixel_of(px, size.x, &fx);
          const int below = min(row + 1, size.y - 1), next = min(place + 1, size.x - 1);
          terms.s0 = (1.0f - fy) * (1.0f - fx) * GET_X(from, (long)row * size.x + place);
          terms.s1 = (1.0f - fy) * fx * GET_X(from, (long)row * size.x + next);
          terms.s2 = fy * (1.0f - fx) * GET_X(from, (long)below * size.x + place);
          terms.s3 = fy * fx * GET_X(from, (long)below * size.x + next);
        }
#ifdef LARGEST
        const float v = fmax(fmax(terms.s0, terms.s1), fmax(terms.s2, terms.s3));
        total = started ? fmax(total, v) : v;
        started = true;
#else
        total += terms.s0 + terms.s1 + terms.s2 + terms.s3;
#endif
      }
    }
#ifndef LARGEST
    total /= fmax(over_x * over_y, 1.0f);
#endif
    PUT_X(y, job * cells + at, total);
  }
}
