// Resampling of the two inner dimensions of (planes, rows, columns) by tables: output row r is a
// weighted sum of ROW_TAPS input rows, and output column c one of COLUMN_TAPS input columns. The
// tables come from the host, which knows all coordinate transformations. A position of -1 stands
// for a place outside the image, which takes `outside`. What weighs nothing is left out, be it
// infinite or NaN.
//
// Options: T, and PICK (one tap each, no weights, any element type) or ROW_TAPS and COLUMN_TAPS

#if defined(HALF) && !defined(PICK)
#define M half
#else
#define M T
#endif

__kernel void resize(
    __global const M* restrict x, __global M* restrict y,
    __global const int* restrict row_places, __global const int* restrict column_places,
#ifndef PICK
    __global const float* restrict row_weights, __global const float* restrict column_weights,
    const float outside,
#else
    __global const T* restrict outside,
#endif
    const int4 size,  // columns and rows of x, columns and rows of y
    const long planes
) {
  const int c = get_global_id(0);
  if (c >= size.z) return;
  const long rows = planes * size.w;
  for (long row = get_global_id(1); row < rows; row += get_global_size(1)) {
    const int r = (int)(row % size.w);
    __global const M* plane = x + row / size.w * ((long)size.x * size.y);
#ifdef PICK
    const int i = row_places[r], j = column_places[c];
    y[row * size.z + c] = i < 0 || j < 0 ? outside[0] : plane[(long)i * size.x + j];
#else
    float sum = 0.0f;
    if (row_places[r * ROW_TAPS] < 0 || column_places[c * COLUMN_TAPS] < 0) {
      sum = outside;
    } else {
      for (int a = 0; a < ROW_TAPS; a++) {
        __global const M* from = plane + (long)row_places[r * ROW_TAPS + a] * size.x;
        float line = 0.0f;
        for (int b = 0; b < COLUMN_TAPS; b++) {
          const float weight = column_weights[c * COLUMN_TAPS + b];
          if (weight != 0.0f) line += weight * GET(from, column_places[c * COLUMN_TAPS + b]);
        }
        const float weight = row_weights[r * ROW_TAPS + a];
        if (weight != 0.0f) sum += weight * line;
      }
    }
    PUT(y, row * size.z + c, sum);
#endif
  }
}
