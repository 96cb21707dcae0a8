// Products of at most ROWS rows with weights of 4 bits in tiles: y[m][n] = sum_k a[m][k] * w[n][k]. A
// group computes a tile of 16 columns; its warps take pieces of the depth in turn, and each piece is
// read once. Matrix units multiply numbers of 4 bits as halves that are not unpacked: with all other
// bits zero, a number at bit 0 stands for itself times 2^-24, at bit 4 for itself times 2^-20. Without
// the option NVIDIA, items compute the same sums by ordinary instructions.
//
// Options: ROWS (a multiple of 8), WARPS; those of block_weights.cl
//   ACTIVATION
//   GATED  of two neighbouring columns, the activation of the first is multiplied by the second

#include "block_weights.cl"
#include "tiled_weights.cl"
#include "warp_units.cl"
#ifdef GATED
#include "gated.cl"
#endif

#define ITEMS (WARPS * 32)
#define EIGHTS (ROWS / 8)
#ifdef NVIDIA
#define ONE 0x1p-24f  // what the number 1 is in the sums
#else
#define ONE 1.0f
#endif

// Item l of a warp has columns l / 4 and eight behind it, of rows l % 4 * 2 and the next in every eight.
#define SUM_OF(sums, g, h, e) (sums)[g][(h) * 2 + (e)]

#ifdef NVIDIA
#define PERMUTE(to, low, high, order) \
  asm("prmt.b32 %0, %1, %2, " order ";" : "=r"(to) : "r"(low), "r"(high))

// What an item reads of a piece.
typedef struct {
  uint4 words;
  uint side[SIDE / 4];
} Piece;

void fetch_piece(Piece* to, __global const uchar* piece, const int lane) {
  to->words = *(__global const uint4*)(piece + lane * 16);
  __global const uint2* side = (__global const uint2*)(piece + WORD_BYTES + lane / 4 * SIDE);
  #pragma unroll
  for (int i = 0; i < SIDE / 8; i++) {
    const uint2 two = side[i];
    to->side[i * 2] = two.x;
    to->side[i * 2 + 1] = two.y;
  }
}

// Adds the products of a piece, whose first term is k0, and all rows.
void add_piece(
    float sums[EIGHTS][4], const Piece* piece, __global const REAL* restrict a,
    const int rows, const int depth, const int k0, const int lane
) {
  const uint ones[4] = {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
  const uint words[4] = {piece->words.x, piece->words.y, piece->words.z, piece->words.w};
  float numbers[SIDE_COUNT];
  numbers_of(numbers, piece->side);
  #pragma unroll
  for (int b = 0; b < 2; b++) {
    const uint low = words[b * 2], high = words[b * 2 + 1];
    const uint even[4] = {low & 0x000f000f, high & 0x000f000f, low >> 8 & 0x000f000f,
                          high >> 8 & 0x000f000f};
    const uint odd[4] = {low & 0x00f000f0, high & 0x00f000f0, low >> 8 & 0x00f000f0,
                         high >> 8 & 0x00f000f0};
    const int k = k0 + b * 32 + lane % 4 * 8;
    #pragma unroll
    for (int g = 0; g < EIGHTS; g++) {
      const int m = min(g * 8 + lane / 4, rows - 1);
      uint4 bits = (uint4)(0);
      if (k < depth) bits = *(__global const uint4*)(a + (size_t)m * depth + k);
      uint x[4];  // elements four apart, as those of a word of weights are
      PERMUTE(x[0], bits.x, bits.z, "0x5410");
      PERMUTE(x[1], bits.y, bits.w, "0x5410");
      PERMUTE(x[2], bits.x, bits.z, "0x7632");
      PERMUTE(x[3], bits.y, bits.w, "0x7632");
      float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // of the rows' elements, the same for all columns
      MULTIPLY(first, even, x);
      MULTIPLY(second, odd, x + 2);
      MULTIPLY(total, ones, x);
      MULTIPLY(total, ones, x + 2);
      #pragma unroll
      for (int h = 0; h < 2; h++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
          const float dot = fma(second[h * 2 + e], 0.0625f, first[h * 2 + e]);
          float* sum = &SUM_OF(sums, g, h, e);
#ifdef ZERO
          *sum = fma(numbers[h * 2 + b], fma(total[e], -(ZERO * ONE), dot), *sum);
#else
          *sum = fma(numbers[h * 2 + b], dot, *sum);
          *sum = fma(numbers[4 + h * 2 + b], -ONE * total[e], *sum);
#endif
        }
    }
  }
}
#else
void add_piece(
    float sums[EIGHTS][4], __global const uchar* piece, __global const REAL* restrict a,
    const int rows, const int depth, const int k0, const int lane
) {
  for (int b = 0; b < 2; b++)
    for (int h = 0; h < 2; h++) {
      const int column = lane / 4 + h * 8;
      __global const SCALES* scale = scale_of(piece, column, b);
      for (int g = 0; g < EIGHTS; g++)
        for (int e = 0; e < 2; e++) {
          const int m = min(g * 8 + lane % 4 * 2 + e, rows - 1);
          float dot = 0.0f, total = 0.0f;
          for (int i = 0; i < 32 && k0 + b * 32 + i < depth; i++) {
            const float v = GET(a, (size_t)m * depth + k0 + b * 32 + i);
            dot = fma((float)(word_of(piece, column, b, i / 8) >> i % 8 * 4 & 15), v, dot);
            total += v;
          }
#ifdef ZERO
          SUM_OF(sums, g, h, e) += GET_SCALE(scale, 0) * (dot - ZERO * total);
#else
          SUM_OF(sums, g, h, e) += GET_SCALE(scale, 0) * dot - GET_SCALE(OFFSET_OF(scale), 0) * total;
#endif
        }
    }
}
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void block_rows(
    __global const REAL* restrict a, __global const uchar* restrict w,
    __global const REAL* restrict bias, __global const REAL* restrict residual,
    __global REAL* restrict y,
    const int rows, const int columns, const int depth, const int2 bias_step, const int has_bias,
    const int has_residual, const float alpha, const float beta
) {
  __local float partial[WARPS][ROWS * TILE];
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int tile = get_group_id(0), pieces = (depth + PIECE - 1) / PIECE;

  float sums[EIGHTS][4];
  #pragma unroll
  for (int g = 0; g < EIGHTS; g++)
    #pragma unroll
    for (int i = 0; i < 4; i++) sums[g][i] = 0.0f;
#ifdef NVIDIA
  Piece next;
  if (warp < pieces) fetch_piece(&next, piece_of(w, tile, pieces, warp), lane);
  for (int p = warp; p < pieces; p += WARPS) {
    const Piece piece = next;
    if (p + WARPS < pieces) fetch_piece(&next, piece_of(w, tile, pieces, p + WARPS), lane);
    add_piece(sums, &piece, a, rows, depth, p * PIECE, lane);
  }
#else
  for (int p = warp; p < pieces; p += WARPS)
    add_piece(sums, piece_of(w, tile, pieces, p), a, rows, depth, p * PIECE, lane);
#endif

  #pragma unroll
  for (int g = 0; g < EIGHTS; g++)
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int e = 0; e < 2; e++)
        partial[warp][(g * 8 + lane % 4 * 2 + e) * TILE + lane / 4 + h * 8] = SUM_OF(sums, g, h, e);
  barrier(CLK_LOCAL_MEM_FENCE);
#ifdef GATED
#define STEP 2  // columns of a result
#else
#define STEP 1
#endif
  for (int i = tid; i < ROWS * (TILE / STEP); i += ITEMS) {
    const int at = i * STEP, m = at / TILE, n = tile * TILE + at % TILE;
    if (m >= rows || n >= columns) continue;
    float v[STEP];
    for (int c = 0; c < STEP; c++) {
      float sum = 0.0f;
      for (int s = 0; s < WARPS; s++) sum += partial[s][at + c];
      v[c] = sum * (1.0f / ONE);
      if (has_bias) v[c] += GET(bias, (size_t)m * bias_step.x + (n + c) * bias_step.y);
    }
#ifdef GATED
    PUT(y, (size_t)m * (columns / 2) + n / 2, gated(v[0], v[1], alpha, beta));
#else
    if (has_residual) v[0] += GET(residual, (size_t)m * columns + n);
    PUT(y, (size_t)m * columns + n, activate(v[0], ACTIVATION, alpha, beta));
#endif
  }
}
