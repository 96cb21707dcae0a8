// Layer normalization of rows of at most 2048 elements, a multiple of eight: a warp to a row.
//
// Options: WARPS  of a group, NORMALIZE  times 256 elements are enough, SINGLE  y is of float32,
//          SINGLE_ROWS  x is, BOTH  the result goes to `wide` of float32, too

#ifdef SINGLE
#define RESULT float
#define PUT_RESULT8(p, i, v) *(__global float8*)((p) + (i)) = vload8(0, v)
#else
#define RESULT REAL
#define PUT_RESULT8(p, i, v) PUT8(p, i, v)
#endif

#ifdef SINGLE_ROWS
#define SOURCE float
#define GET_SOURCE8(v, p, i) vstore8(*(__global const float8*)((p) + (i)), 0, v)
#else
#define SOURCE REAL
#define GET_SOURCE8(v, p, i) GET8(v, p, i)
#endif

// A row of at most NORMALIZE times 256 elements, a multiple of eight; nothing if it is not there.
void normalize_row(
    __global SOURCE* from, __global RESULT* to, __global float* wide, const bool there, const int columns,
    __global const float* restrict scale, __global const float* restrict shift,
    const float epsilon, __local float* partial, const int tid
) {
  float v[NORMALIZE][8], sum = 0.0f;
  #pragma unroll
  for (int i = 0; i < NORMALIZE; i++) {
    const int n = i * 256 + tid % 32 * 8;
    for (int q = 0; q < 8; q++) v[i][q] = 0.0f;
    if (there && n < columns) GET_SOURCE8(v[i], from, n);
    #pragma unroll
    for (int q = 0; q < 8; q++) sum += v[i][q];
  }
  const float mean = sum_over_warp(sum, partial, tid) / (float)columns;
  float squares = 0.0f;
  #pragma unroll
  for (int i = 0; i < NORMALIZE; i++)
    #pragma unroll
    for (int q = 0; q < 8; q++) {
      const float d = v[i][q] - mean;
      squares += i * 256 + tid % 32 * 8 < columns ? d * d : 0.0f;
    }
  const float variance = sum_over_warp(squares, partial, tid) / (float)columns;
  const float factor = 1.0f / sqrt(variance + epsilon);
  #pragma unroll
  for (int i = 0; i < NORMALIZE; i++) {
    const int n = i * 256 + tid % 32 * 8;
    if (!there || n >= columns) continue;
    #pragma unroll
    for (int q = 0; q < 8; q += 4) {
      const float4 s = *(__global const float4*)(scale + n + q);
      const float4 b = *(__global const float4*)(shift + n + q);
      v[i][q] = (v[i][q] - mean) * factor * s.x + b.x;
      v[i][q + 1] = (v[i][q + 1] - mean) * factor * s.y + b.y;
      v[i][q + 2] = (v[i][q + 2] - mean) * factor * s.z + b.z;
      v[i][q + 3] = (v[i][q + 3] - mean) * factor * s.w + b.w;
    }
    PUT_RESULT8(to, n, v[i]);
#ifdef BOTH
    *(__global float8*)(wide + n) = vload8(0, v[i]);
#endif
  }
}

__kernel __attribute__((reqd_work_group_size(WARPS * 32, 1, 1)))
void normalize_short(
    __global SOURCE* x, __global const float* restrict scale, __global const float* restrict shift,
    __global RESULT* y, __global float* wide, const int rows, const int columns, const float epsilon
) {
  __local float partial[WARPS * 32];
  const int tid = get_local_id(0);
  const size_t row = get_group_id(0) * WARPS + tid / 32;
  normalize_row(x + row * columns, y + row * columns, wide + row * columns, row < (size_t)rows,
                columns, scale, shift, epsilon, partial, tid);
}
