// Attention in tiles by a warp's matrix units: scores of TALL * 16 rows with BLOCK keys stay in
// registers, new maxima scale down what was summed before (Dao et al., FlashAttention, 2022). Rows of a
// tile in local memory are CHUNKS times 16 bytes, permuted so that ldmatrix reads eight of them from
// all banks.
//
// To be included behind warp_units.cl. Options: HD  elements of a head, filled up to a multiple of 16
//   CHUNKS  eights of a row in local memory, a power of two; BLOCK  keys at a time
//   TALL    16 rows of a warp that share what it loads of keys and values, so many times

#define NEVER (-FLT_MAX)

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

// Item l has rows l / 4 and eight below of each 16, of columns l % 4 * 2 and the next in every eight.
#define ROWS_OF_ITEM (TALL * 2)
#define ROW_OF(h) ((h) / 2 * 16 + (h) % 2 * 8 + lane / 4)
#define COLUMN_OF(j, e) ((j) * 8 + lane % 4 * 2 + (e))
// Of row h: scores with BLOCK keys, and HD elements of the result.
#define SCORE_OF(s, h, j, e) (s)[(h) / 2 * (BLOCK / 8) + (j)][(h) % 2 * 2 + (e)]
#define OUT_OF(out, h, j, e) (out)[(h) / 2 * (HD / 8) + (j)][(h) % 2 * 2 + (e)]

// Copies of a block's rows from row0 on are under way; those from `rows` on are zeros.
#define COPY_BLOCK(tile, x, step, row0, rows, elements) { \
    _Pragma("unroll 4") for (int i = tid; i < BLOCK * (HD / 8); i += ITEMS) { \
      const int r = i / (HD / 8), c = i % (HD / 8); \
      const bool there = (row0) + r < (rows) && c * 8 < (elements); \
      COPY((tile) + PLACE(r, c), (x) + (size_t)(there ? (row0) + r : 0) * (step) + c * 8, there ? 16 : 0); } \
    COMMIT(); }

// Nothing is summed yet.
void start_sums(float (*out)[4], float* peak, float* total) {
  #pragma unroll
  for (int h = 0; h < ROWS_OF_ITEM; h++) {
    peak[h] = NEVER;
    total[h] = 0.0f;
    #pragma unroll
    for (int j = 0; j < HD / 8; j++) OUT_OF(out, h, j, 0) = OUT_OF(out, h, j, 1) = 0.0f;
  }
}

// s = q k' of a warp's rows, which begin at row `first` of their tile.
void multiply_keys(
    float (*s)[4], __local const char* q_tile, __local const char* k_tile, const int first,
    const int lane
) {
  #pragma unroll
  for (int j = 0; j < TALL * BLOCK / 8; j++)
    #pragma unroll
    for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
  #pragma unroll
  for (int c = 0; c < HD / 8; c += 2) {
    uint a[TALL][4];
    #pragma unroll
    for (int t = 0; t < TALL; t++)
      LOAD_FRAGMENTS(a[t][0], a[t][1], a[t][2], a[t][3],
          q_tile + PLACE(first + t * 16 + lane % 16, c + lane / 16));
    #pragma unroll
    for (int j = 0; j < BLOCK / 8; j += 2) {
      uint b[4];
      const int r = j * 8 + lane / 16 * 8 + lane % 8;
      LOAD_FRAGMENTS(b[0], b[1], b[2], b[3], k_tile + PLACE(r, c + lane / 8 % 2));
      #pragma unroll
      for (int t = 0; t < TALL; t++) {
        MULTIPLY(s[t * (BLOCK / 8) + j], a[t], b);
        MULTIPLY(s[t * (BLOCK / 8) + j + 1], a[t], b + 2);
      }
    }
  }
}

// Scores of row h, times log2(e), become their powers; what was summed before is scaled down. An item
// sums the powers of its own columns. The difference to the maximum is exact where both are huge.
void take_powers(float (*s)[4], float (*out)[4], float* peak, float* total, const int h) {
  float top = peak[h];
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) top = fmax(top, SCORE_OF(s, h, j, e));
  OVER_ROW(top, fmax)
  const float shrink = native_exp2(peak[h] - top);
  peak[h] = top;
  total[h] *= shrink;
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) {
      const float power = native_exp2(SCORE_OF(s, h, j, e) - top);
      SCORE_OF(s, h, j, e) = power;
      total[h] += power;
    }
  #pragma unroll
  for (int j = 0; j < HD / 8; j++)
    #pragma unroll
    for (int e = 0; e < 2; e++) OUT_OF(out, h, j, e) *= shrink;
}

// out += p v
void multiply_values(float (*out)[4], float (*p)[4], __local const char* v_tile, const int lane) {
  #pragma unroll
  for (int j = 0; j < BLOCK / 8; j += 2) {
    uint a[TALL][4];
    #pragma unroll
    for (int t = 0; t < TALL; t++) {
      const float* left = p[t * (BLOCK / 8) + j];
      const float* right = p[t * (BLOCK / 8) + j + 1];
      a[t][0] = pack2(left[0], left[1]);
      a[t][1] = pack2(left[2], left[3]);
      a[t][2] = pack2(right[0], right[1]);
      a[t][3] = pack2(right[2], right[3]);
    }
    #pragma unroll
    for (int c = 0; c < HD / 8; c += 2) {
      uint b[4];
      const int r = j * 8 + lane % 8 + lane / 8 % 2 * 8;
      LOAD_TRANSPOSED(b[0], b[1], b[2], b[3], v_tile + PLACE(r, c + lane / 16));
      #pragma unroll
      for (int t = 0; t < TALL; t++) {
        MULTIPLY(out[t * (HD / 8) + c], a[t], b);
        MULTIPLY(out[t * (HD / 8) + c + 1], a[t], b + 2);
      }
    }
  }
}
#endif
