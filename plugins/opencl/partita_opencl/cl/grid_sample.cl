// Images or volumes read at coordinates in [-1, 1], each result made of TAPS elements along each
// axis. Neighbouring items compute neighbouring points.
//
// Options: RANK (2 or 3), TAPS  1 the nearest element, 2 linearly, 4 by a cubic filter
//   ZEROS, BORDER, REFLECTION  what stands for elements outside
//   X_HALF, GRID_HALF  elements of these are float16 in memory, else float32
//   ALIGNED  -1 and 1 are the centres of the outer pixels instead of their edges

#include "image_elements.cl"
#ifdef GRID_HALF
#define G half
#define GET_G(p, i) GET_HALF(p, i)
#else
#define G float
#define GET_G(p, i) (p)[i]
#endif

#ifdef ALIGNED
#define EDGE 0.0f
#else
#define EDGE 0.5f
#endif

// A place folded at both ends into [low, high].
float reflected(const float v, const float low, const float high) {
  const float span = high - low, away = v - low;
  if (!(span > 0.0f)) return low;
  const float turns = floor(away / span), rest = away - turns * span;
  return fmod(turns, 2.0f) == 0.0f ? low + rest : high - rest;
}

// The element that stands for a place of an axis; -1 for none.
int element_of(const int place, const int size) {
  if (place >= 0 && place < size) return place;
#ifdef ZEROS
  return -1;
#else
  if (size == 0) return -1;
  int inside = place;
#ifdef REFLECTION
  inside = (int)reflected((float)place, -EDGE, size - 1 + EDGE);
#endif
  return min(max(inside, 0), size - 1);
#endif
}

// The elements of an axis that a coordinate is made of, and their shares.
void find_taps(const float coordinate, const int size, int* elements, float* shares) {
#ifdef ALIGNED
  float v = (coordinate + 1.0f) / 2.0f * (size - 1);
#else
  float v = ((coordinate + 1.0f) * size - 1.0f) / 2.0f;
#endif
  // Far places, or none, must not overflow the integers below.
  v = isnan(v) ? -1e9f : fmin(fmax(v, -1e9f), 1e9f);
#if TAPS == 1
  v = rint(v);
#endif
#ifdef REFLECTION
  if (v < -EDGE || v > size - 1 + EDGE) v = reflected(v, -EDGE, size - 1 + EDGE);
#endif
  const float below = floor(v), t = v - below;
  const int first = (int)below;
#if TAPS == 1
  elements[0] = element_of(first, size);
  shares[0] = 1.0f;
#elif TAPS == 2
  elements[0] = element_of(first, size);
  elements[1] = element_of(first + 1, size);
  shares[0] = 1.0f - t;
  shares[1] = t;
#else
  for (int n = 0; n < 4; n++) elements[n] = element_of(first - 1 + n, size);
  const float a = -0.75f, u = 1.0f - t;
  shares[0] = ((a * (t + 1.0f) - 5.0f * a) * (t + 1.0f) + 8.0f * a) * (t + 1.0f) - 4.0f * a;
  shares[1] = ((a + 2.0f) * t - (a + 3.0f)) * t * t + 1.0f;
  shares[2] = ((a + 2.0f) * u - (a + 3.0f)) * u * u + 1.0f;
  shares[3] = ((a * (u + 1.0f) - 5.0f * a) * (u + 1.0f) + 8.0f * a) * (u + 1.0f) - 4.0f * a;
#endif
}

// size: W, H and, of volumes, D. The grid has a coordinate along each, in this order.
__kernel void grid_sample(
    __global const X* restrict x, __global const G* restrict grid, __global X* restrict y,
    const long points, const int channels, const int images, const int4 size
) {
  const long point = get_global_id(0);
  if (point >= points) return;
  const long plane = (long)size.s0 * size.s1 * size.s2;
  for (int image = get_global_id(2); image < images; image += get_global_size(2)) {
    const long at = (image * points + point) * RANK;
    int columns[TAPS], rows[TAPS];
    float across[TAPS], down[TAPS];
    find_taps(GET_G(grid, at), size.s0, columns, across);
    find_taps(GET_G(grid, at + 1), size.s1, rows, down);
#if RANK == 3
    int slices[TAPS];
    float deep[TAPS];
    find_taps(GET_G(grid, at + 2), size.s2, slices, deep);
#else
    const int slices[1] = {0};
    const float deep[1] = {1.0f};
#endif
    for (int c = get_global_id(1); c < channels; c += get_global_size(1)) {
      __global const X* source = x + ((long)image * channels + c) * plane;
      float sum = 0.0f;
      for (int s = 0; s < (RANK == 3 ? TAPS : 1); s++) {
        if (slices[s] < 0) continue;
        for (int r = 0; r < TAPS; r++) {
          if (rows[r] < 0) continue;
          const long row = ((long)slices[s] * size.s1 + rows[r]) * size.s0;
          for (int n = 0; n < TAPS; n++) {
            if (columns[n] < 0) continue;
            sum += deep[s] * down[r] * across[n] * GET_X(source, row + columns[n]);
          }
        }
      }
      PUT_X(y, ((long)image * channels + c) * points + point, sum);
    }
  }
}
