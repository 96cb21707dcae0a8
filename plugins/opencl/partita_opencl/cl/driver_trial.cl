// What a driver must be able to do at all, and then, with VECTORS, what most kernels are made of:
// sums by fma of vectors of eight and sixteen, which must agree.

__kernel void trial(__global const float* x, __global float* y, const float a) {
  __local float values[8];
  const int i = get_global_id(0), l = get_local_id(0);
  values[l] = x[i];
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
}
