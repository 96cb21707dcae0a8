// Local response normalization across channels: an item computes one element.

__kernel void local_response(
    __global const REAL* restrict x, __global REAL* restrict y, const long count,
    const int channels, const long inner, const int before, const int after, const float alpha,
    const float beta, const float bias  // alpha is divided by the window size already
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const int c = (int)((at / inner) % channels);
  __global const REAL* column = x + (at - (size_t)c * inner);
  float sum = 0.0f;
  for (int i = max(0, c - before); i <= min(channels - 1, c + after); i++) {
    const float v = GET(column, (size_t)i * inner);
    sum = fma(v, v, sum);
  }
  PUT(y, at, GET(x, at) * pow(fma(alpha, sum, bias), -beta));
}
