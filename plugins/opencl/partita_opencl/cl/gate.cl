// y[i] = act(x[2 i]) * x[2 i + 1].

__kernel void gate(
    __global const REAL* restrict x, __global REAL* restrict y, const long count,
    const float alpha, const float beta
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  PUT(y, at, activate(GET(x, 2 * at), ACTIVATION, alpha, beta) * GET(x, 2 * at + 1));
}
