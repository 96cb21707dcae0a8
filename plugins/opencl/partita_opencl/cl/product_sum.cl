// Second half of a product whose k range was split: adds the partial sums in a fixed order (so
// that results repeat bit for bit), then bias, residual and activation.

__kernel void product_sum(
    __global const float* restrict partial, __global const REAL* restrict bias,
    __global const REAL* restrict residual, __global REAL* restrict y,
    const int rows, const int columns, const int batches, const int splits,
    const int bias_mod, const int2 bias_step, const int has_bias, const int has_residual,
    const float alpha, const float beta
) {
  const size_t count = (size_t)batches * rows * columns;
  const size_t i = get_global_id(0);
  if (i >= count) return;
  float v = 0.0f;
  for (int s = 0; s < splits; s++) v += partial[s * count + i];
  if (has_bias) {
    const int n = (int)(i % columns);
    const size_t row = i / columns;
    const int m = (int)(row % rows), z = (int)(row / rows);
    bias += (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns);
    v += GET(bias, m * bias_step.x + n * bias_step.y);
  }
  if (has_residual) v += GET(residual, i);
  PUT(y, i, activate(v, ACTIVATION, alpha, beta));
}
