// The least that a driver must be able to do, and then, with VECTORS, what most kernels are made of:
// sums by fma of vectors of eight and sixteen, which must agree. With DECLARED, too, built-in
// functions of other kinds: what the declarations of a program must lead to.

__kernel void trial(__global const float* x, __global float* y, const float a) {
  __local float values[8];
  const int i = get_global_id(0), l = get_local_id(0);
  values[l] = x[i];
#ifdef DECLARED
  __local ushort bits[8] __attribute__((aligned(16)));
  __local half* halves = (__local half*)bits;
  __local int arrived;
  vstore_half(x[i], l, halves);
  if (l == 0) arrived = 0;
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
#ifdef VECTORS
  const float16 v = (float16)(values[l], values[l ^ 1], x[i], x[i ^ 1], vload4(0, x), vload8(0, x));
  float16 wide = (float16)(0.0f);
  float8 narrow = (float8)(0.0f);
  for (int n = 0; n < 4; n++) {
    wide = fma((float16)(a), v, wide);
    narrow = fma((float8)(a), v.hi, narrow);
  }
  y[i] = wide.s0 + wide.s1 + wide.s3 + wide.s7 - wide.sd + narrow.s5;
#else
  y[i] = a * values[l] + a * x[i ^ 1];
#endif
#ifdef DECLARED
  atomic_inc(&arrived);
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  const long capped = min((long)(l - 3) << 33, 5L);  // of int it is 0
  y[i] += exp(-fabs(x[i])) + vload_half8(0, halves).s3 + max(capped, -3L) + arrived
      + convert_char_sat_rte(100.0f * x[i]) + (isnan(x[i]) ? 1.0f : 0.0f);
#endif
}
