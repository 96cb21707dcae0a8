// Sums of products by pieces of tiles of 4 bits. The rows are the columns of the matrix units' second
// operand, of which there are 8. Numbers of 4 bits are halves as they lie in a word: with all other bits
// zero, they stand for themselves times 2^-24, or 2^-20 if they begin at bit 4. Without the option
// NVIDIA, an item computes the same sums by ordinary instructions.
//
// To be included behind tiled_weights.cl and warp_units.cl. Options: ROWS, PIECES

#define PITCH (PIECES * PIECE + 32)  // rows begin in other banks
#if ROWS == 1
#define PAIR 1  // rows of which an item has sums
#else
#define PAIR 2
#endif
#define QUADS_OF_ROWS ((ROWS + 1) / 2)  // of four, such as a lane has sums: two rows, twice

#ifdef NVIDIA
#define ONE 0x1p-24f  // what the number 1 is in the sums
#else
#define ONE 1.0f
#endif

#ifdef NVIDIA
// Neighbours in local memory, `offset` bytes behind an address.
#define GET_WORDS2(v, at, offset) asm volatile("ld.shared.v2.u32 {%0, %1}, [%2 + %3];" \
    : "=r"((v)[0]), "=r"((v)[1]) : "r"(at), "n"(offset) : "memory")
#define GET_WORDS4(v, at, offset) asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];" \
    : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3]) : "r"(at), "n"(offset) : "memory")
#define GET_FLOATS4(v, at, offset) asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4 + %5];" \
    : "=f"((v)[0]), "=f"((v)[1]), "=f"((v)[2]), "=f"((v)[3]) : "r"(at), "n"(offset) : "memory")
// Of items that do not want any, the words are whatever they are.
#define GET_WORDS4_IF(wanted, v, at, offset) asm volatile("{.reg .pred p; setp.ne.u32 p, %6, 0; " \
    "@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];}" \
    : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3]) \
    : "r"(at), "n"(offset), "r"((uint)(wanted)) : "memory")

// Where an item finds its part of a piece, of its scales, of the rows and of their totals.
typedef struct {
  uint words, side, rows, totals, wants_rows;
} Reader;

// Adds a piece's products to the sums of two columns 8 apart, and PAIR rows; `at` pieces further on.
#define ADD_PIECE(sums, reader, at) \
  { \
    uint words[4], bits[SIDE / 4]; \
    float numbers[SIDE_COUNT]; \
    GET_WORDS4(words, (reader).words, (at) * PIECE_BYTES); \
    if (SIDE == 8) GET_WORDS2(bits, (reader).side, (at) * PIECE_BYTES); \
    if (SIDE >= 16) GET_WORDS4(bits, (reader).side, (at) * PIECE_BYTES); \
    if (SIDE == 32) GET_WORDS4(bits + SIDE / 4 - 4, (reader).side, (at) * PIECE_BYTES + 16); \
    numbers_of(numbers, bits); \
    ADD_BLOCK(sums, reader, at, 0, words[0], words[1]) \
    ADD_BLOCK(sums, reader, at, 1, words[2], words[3]) \
  }
#define ADD_BLOCK(sums, reader, at, b, low, high) \
  { \
    uint rows[4]; \
    float totals[4]; \
    GET_WORDS4_IF((reader).wants_rows, rows, (reader).rows, (at) * (PIECE * 2) + (b) * PIECE); \
    GET_FLOATS4(totals, (reader).totals, ((at) * 2 + (b)) * (QUADS_OF_ROWS * 16)); \
    add_block(sums, low, high, rows, totals, numbers, b); \
  }

void numbers_of(float* numbers, const uint* bits) {
  #pragma unroll
  for (int i = 0; i < SIDE / 4; i++) {
    if (sizeof(RAW(SCALES)) == 2) {
      const float2 two = unpack2(bits[i]);
      numbers[2 * i] = two.x;
      numbers[2 * i + 1] = two.y;
    } else {
      numbers[i] = as_float(bits[i]);
    }
  }
}

void add_block(
    float sums[2][PAIR], const uint low, const uint high, const uint* rows, const float* totals,
    const float* numbers, const int b
) {
  const uint even[4] = {low & 0x000f000f, high & 0x000f000f, low >> 8 & 0x000f000f,
                        high >> 8 & 0x000f000f};
  const uint odd[4] = {low & 0x00f000f0, high & 0x00f000f0, low >> 8 & 0x00f000f0,
                       high >> 8 & 0x00f000f0};
#ifdef ZERO
  float first[4] = {totals[0], totals[1], totals[2], totals[3]};
#else
  float first[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#endif
  float second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  MULTIPLY(first, even, rows);
  MULTIPLY(second, odd, rows + 2);
  #pragma unroll
  for (int h = 0; h < 2; h++)
    #pragma unroll
    for (int r = 0; r < PAIR; r++) {
      const float dot = fma(second[h * 2 + r], 0.0625f, first[h * 2 + r]);
      sums[h][r] = fma(numbers[h * 2 + b], dot, sums[h][r]);
#ifndef ZERO
      sums[h][r] = fma(numbers[4 + h * 2 + b], totals[h * 2 + r], sums[h][r]);
#endif
    }
}
#define UNPACK8(v, bits) unpack8(v, bits)
#define FRESH_BITS(bits, p) \
  { float4 four; GET_FRESH4(four, (__global const float4*)(p)); bits = as_uint4(four); }
#else
// Adds a piece's products to the sums of two columns 8 apart, and PAIR rows.
void add_piece(
    float sums[2][PAIR], __global const uchar* piece, const int column, __local const half* x,
    __local const float* totals
) {
  for (int b = 0; b < 2; b++)
    for (int h = 0; h < 2; h++) {
      __global const SCALES* scale = scale_of(piece, column + h * 8, b);
      for (int r = 0; r < PAIR; r++) {
        float dot = 0.0f;
        for (int t = 0; t < 4; t++) {
          const uint word = word_of(piece, column + h * 8, b, t);
          float v[8];
          GET_LOCAL8(v, x + r * PITCH + b * 32 + t * 8);
          for (int i = 0; i < 8; i++) dot = fma((float)(word >> PLACE(i) * 4 & 15), v[i], dot);
        }
        const float total = totals[b * QUADS_OF_ROWS * 4 + r];
#ifdef ZERO
        sums[h][r] = fma(GET_SCALE(scale, 0), dot + total, sums[h][r]);
#else
        sums[h][r] = fma(GET_SCALE(scale, 0), dot, sums[h][r]);
        sums[h][r] = fma(GET_SCALE(OFFSET_OF(scale), 0), total, sums[h][r]);
#endif
      }
    }
}
#define UNPACK8(v, bits) vstore8(vload_half8(0, (const half*)&(bits)), 0, v)
#define FRESH_BITS(bits, p) { bits = *(__global const uint4*)(p); }
#endif

