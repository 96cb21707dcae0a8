// Attention in tiles by a warp's matrix units: scores of 16 rows with BLOCK keys stay in registers, new
// maxima scale down what was summed before (Dao et al., FlashAttention, 2022). Rows of a tile in local
// memory are CHUNKS times 16 bytes, permuted so that ldmatrix reads eight of them from all banks.
//
// To be included behind warp_units.cl. Options: HD  elements of a head, filled up to a multiple of 16
//   CHUNKS  eights of a row in local memory, a power of two; BLOCK  keys at a time

#define NEVER (-1e30f)

#ifdef NVIDIA
#if CHUNKS >= 8
#define PLACE(r, c) (((r) * CHUNKS + ((c) ^ ((r) & 7))) * 16)
#elif CHUNKS == 4
#define PLACE(r, c) (((r) * 4 + ((c) ^ (((r) >> 1) & 3))) * 16)
#else
#define PLACE(r, c) (((r) * 2 + ((c) ^ (((r) >> 2) & 1))) * 16)
#endif
#define LOAD_TRANSPOSED(a, b, c, d, p) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" \
    : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(SHARED(p)) : "memory")
// Of the four items that share a row.
#define OVER_ROW(v, how) { float other; \
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=f"(other) : "f"(v)); \
    v = how(v, other); \
    asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;" : "=f"(other) : "f"(v)); \
    v = how(v, other); }
#define PLUS(a, b) ((a) + (b))

// Item l has rows l / 4 and eight below, of columns l % 4 * 2 and the next in every eight.
#define ROW_OF(h) (lane / 4 + (h) * 8)
#define COLUMN_OF(j, e) ((j) * 8 + lane % 4 * 2 + (e))

// Copies of a block's rows from row0 on are under way; those from `rows` on are zeros.
#define COPY_BLOCK(tile, x, step, row0, rows, elements) { \
    _Pragma("unroll 4") for (int i = tid; i < BLOCK * (HD / 8); i += ITEMS) { \
      const int r = i / (HD / 8), c = i % (HD / 8); \
      const bool there = (row0) + r < (rows) && c * 8 < (elements); \
      COPY((tile) + PLACE(r, c), (x) + (size_t)(there ? (row0) + r : 0) * (step) + c * 8, there ? 16 : 0); } \
    COMMIT(); }

// s = q k' of a warp's rows, which begin at row `first` of their tile.
void multiply_keys(
    float (*s)[4], __local const char* q_tile, __local const char* k_tile, const int first,
    const int lane
) {
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j++)
    #pragma unroll
    for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
  #pragma unroll
  for (int c = 0; c < HD / 8; c += 2) {
    uint a[4];
    LOAD_FRAGMENTS(a[0], a[1], a[2], a[3], q_tile + PLACE(first + lane % 16, c + lane / 16));
    #pragma unroll
    for (int j = 0; j < BLOCK / 8; j += 2) {
      uint b[4];
      const int r = j * 8 + lane / 16 * 8 + lane % 8;
      LOAD_FRAGMENTS(b[0], b[1], b[2], b[3], k_tile + PLACE(r, c + lane / 8 % 2));
      MULTIPLY(s[j], a, b);
      MULTIPLY(s[j + 1], a, b + 2);
    }
  }
}

// Scores of row h become their powers; what was summed before is scaled down.
void take_powers(
    float (*s)[4], float (*out)[4], float* peak, float* total, const int h
) {
  float top = peak[h];
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) top = fmax(top, s[j][h * 2 + e]);
  OVER_ROW(top, fmax)
  const float shrink = native_exp2((peak[h] - top) * M_LOG2E_F);
  peak[h] = top;
  float sum = 0.0f;
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) {
      const float p = native_exp2((s[j][h * 2 + e] - top) * M_LOG2E_F);
      s[j][h * 2 + e] = p;
      sum += p;
    }
  OVER_ROW(sum, PLUS)
  total[h] = total[h] * shrink + sum;
  #pragma unroll
  for (int j = 0; j < HD / 8; j++) {
    out[j][h * 2] *= shrink;
    out[j][h * 2 + 1] *= shrink;
  }
}

// out += p v
void multiply_values(
    float (*out)[4], float (*p)[4], __local const char* v_tile, const int lane
) {
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j += 2) {
    const uint a[4] = { pack2(p[j][0], p[j][1]), pack2(p[j][2], p[j][3]),
                        pack2(p[j + 1][0], p[j + 1][1]), pack2(p[j + 1][2], p[j + 1][3]) };
    #pragma unroll
    for (int c = 0; c < HD / 8; c += 2) {
      uint b[4];
      const int r = j * 8 + lane % 8 + lane / 8 % 2 * 8;
      LOAD_TRANSPOSED(b[0], b[1], b[2], b[3], v_tile + PLACE(r, c + lane / 16));
      MULTIPLY(out[c], a, b);
      MULTIPLY(out[c + 1], a, b + 2);
    }
  }
}
#endif
