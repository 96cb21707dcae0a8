// Matrix products and convolutions for CPUs: an item computes ROWS x 16 outputs in registers (NARROW:
// ROWS x 8); no local memory, one vector load and ROWS scalar loads per step of k.
//
//   plain     y[z][m][n] = act(sum_k a[z][m][k] * b[z][k][n] + ...): rows are m, lanes are n
//   IM2COL    y[z][c][p] = act(sum_k x[z][p, tap k] * w[z][k][c] + ...): rows are pixels p, lanes
//             are channels c; x is padded already, so that no tap falls outside
//
// Options: ROWS, IM2COL, ACTIVATION
//   PANELS  b (or w) is stored as panels of 16 columns, [z][n / 16][k][n % 16] with zeros at the
//           end, so that an item reads it from front to back; else as [z][k][n]

#ifdef NARROW
#define LANES 8
#define OF_LANES(name) name##8
#else
#define LANES 16
#define OF_LANES(name) name##16
#endif
typedef OF_LANES(float) Lanes;
#define GET_VECTOR OF_LANES(vload)

#ifdef HALF
#ifdef BFLOAT
#define GET_LANES(p) OF_LANES(as_float)(OF_LANES(convert_uint)(GET_VECTOR(0, (p))) << 16)
#else
#define GET_LANES(p) OF_LANES(vload_half)(0, (p))
#endif
#else
#define GET_LANES(p) GET_VECTOR(0, (p))
#endif

#ifdef IM2COL
#define TAP(k) taps[k]
#else
#define TAP(k) (k)
#endif

Lanes load_lanes(__global const REAL* at, const int count) {
  if (count >= LANES) return GET_LANES(at);
  float lanes[LANES];
  for (int i = 0; i < LANES; i++) lanes[i] = i < count ? GET(at, i) : 0.0f;
  return GET_VECTOR(0, lanes);
}

__kernel void product_lanes(
    __global const REAL* restrict a, __global const REAL* restrict b,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
    __global REAL* restrict y,
    const int rows, const int columns, const int depth, const int batches,
    const int4 batch_map, const int bias_mod, const int2 bias_step, const int has_bias,
    const int has_residual, const float alpha, const float beta
#ifdef IM2COL
    , __global const int* restrict taps,  // per k: offset in the padded image
    const int4 in_size,                   // x, y, z of the padded image, w: channels
    const int4 out_size, const int4 stride
#endif
) {
  const int m0 = get_global_id(0) * ROWS;
  const int n0 = get_global_id(1) * LANES;
  if (n0 >= columns || m0 >= rows) return;
  const int lanes = columns - n0;
  for (int z = get_global_id(2); z < batches; z += get_global_size(2)) {
#ifdef IM2COL
    __global const REAL* a_z = a + (size_t)z * in_size.w * in_size.z * in_size.y * in_size.x;
#else
    __global const REAL* a_z = a + (size_t)((z / batch_map.x) % batch_map.y) * rows * depth;
#endif
    const size_t b_matrix = (z / batch_map.z) % batch_map.w;
#ifdef PANELS
    const int b_row = LANES;
    __global const REAL* b_z = b + (b_matrix * ((columns + LANES - 1) / LANES) * LANES + n0) * depth;
    const bool whole = true;
#else
    const int b_row = columns;
    __global const REAL* b_z = b + b_matrix * depth * columns + n0;
    const bool whole = lanes >= LANES;
#endif

    __global const REAL* row[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int m = min(m0 + r, rows - 1);  // rows beyond the last one repeat it, not stored
#ifdef IM2COL
      const int ox = m % out_size.x;
      const int oy = (m / out_size.x) % out_size.y;
      const int oz = m / (out_size.x * out_size.y);
      row[r] = a_z + ((size_t)(oz * stride.z) * in_size.y + oy * stride.y) * in_size.x +
               ox * stride.x;
#else
      row[r] = a_z + (size_t)m * depth;
#endif
    }

    Lanes sums[ROWS];
    #pragma unroll
    for (int r = 0; r < ROWS; r++) sums[r] = (Lanes)(0.0f);
    if (whole) {
      for (int k = 0; k < depth; k++) {
        const Lanes v = GET_LANES(b_z + (size_t)k * b_row);
        const int tap = TAP(k);
        #pragma unroll
        for (int r = 0; r < ROWS; r++) sums[r] = fma((Lanes)(GET(row[r], tap)), v, sums[r]);
      }
    } else {
      for (int k = 0; k < depth; k++) {
        const Lanes v = load_lanes(b_z + (size_t)k * b_row, lanes);
        const int tap = TAP(k);
        #pragma unroll
        for (int r = 0; r < ROWS; r++) sums[r] = fma((Lanes)(GET(row[r], tap)), v, sums[r]);
      }
    }

    const size_t matrix = (size_t)z * rows * columns;
    const size_t bias_at = (size_t)(z % bias_mod) * (bias_step.x * rows + bias_step.y * columns);
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
      if (m0 + r >= rows) continue;
      float out[LANES];
      OF_LANES(vstore)(sums[r], 0, out);
      for (int i = 0; i < min(lanes, LANES); i++) {
#ifdef IM2COL
        const size_t at = matrix + (size_t)(n0 + i) * rows + m0 + r;
#else
        const size_t at = matrix + (size_t)(m0 + r) * columns + n0 + i;
#endif
        float v = out[i];
        if (has_bias) v += GET(bias, bias_at + (m0 + r) * bias_step.x + (n0 + i) * bias_step.y);
        if (has_residual) v += GET(residual, at);
        PUT(y, at, activate(v, ACTIVATION, alpha, beta));
      }
    }
  }
}
