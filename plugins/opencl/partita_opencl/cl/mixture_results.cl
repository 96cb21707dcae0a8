// Stores the results of products by experts' weights.
//
// Options: those of gated.cl
//   GATED  of two neighbouring columns, the activation of the first is multiplied by the second

#include "gated.cl"

// Two neighbouring columns of a row, of which the first is even; bias is that of the expert.
void put_pair(
    __global REAL* y, __global const REAL* bias, const size_t row, const int n, const int columns,
    float2 v, const int has_bias, const float alpha, const float beta
) {
  if (n >= columns) return;
  if (has_bias) {
    v.x += GET(bias, n);
    if (n + 1 < columns) v.y += GET(bias, n + 1);
  }
#ifdef GATED
  PUT(y, row * (columns / 2) + n / 2, gated(v.x, v.y, alpha, beta));
#else
  PUT(y, row * columns + n, activate(v.x, ACTIVATION, alpha, beta));
  if (n + 1 < columns) PUT(y, row * columns + n + 1, activate(v.y, ACTIVATION, alpha, beta));
#endif
}
