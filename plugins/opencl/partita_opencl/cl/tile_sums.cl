// Sums of products by pieces of tiles of 4 bits. The columns of the matrix units' second operand, of
// which there are 8, are the rows, each for both blocks of GROUP pieces: so it is read once for all of
// these, and of what a piece is multiplied by, each item keeps what belongs to a piece. Numbers of 4
// bits are halves as they lie in a word: with all other bits zero, they stand for themselves times
// 2^-24, or 2^-20 if they begin at bit 4. Without the option NVIDIA, an item computes the same sums by
// ordinary instructions.
//
// To be included behind tiled_weights.cl and warp_units.cl. Options: ROWS (at most 4), PIECES, CHUNK

#define PITCH (PIECES * PIECE + 32)  // rows begin in other banks
#define SPAN (ROWS > 2 ? 4 : ROWS)  // columns of a block: a power of two
#if CHUNK < 4 / SPAN
#define GROUP CHUNK
#else
#define GROUP (4 / SPAN)
#endif

#ifdef NVIDIA
#define ONE 0x1p-24f  // the value of 1 in the sums
#else
#define ONE 1.0f
#endif

#ifdef NVIDIA
#define PAIR 2  // columns of the second operand of which an item has results

// Neighbours in local memory, `offset` bytes behind an address.
#define GET_WORDS2(v, at, offset) asm volatile("ld.shared.v2.u32 {%0, %1}, [%2 + %3];" \
    : "=r"((v)[0]), "=r"((v)[1]) : "r"(at), "n"(offset) : "memory")
#define GET_WORDS4(v, at, offset) asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4 + %5];" \
    : "=r"((v)[0]), "=r"((v)[1]), "=r"((v)[2]), "=r"((v)[3]) : "r"(at), "n"(offset) : "memory")
#define GET_FLOATS2(v, at, offset) asm volatile("ld.shared.v2.f32 {%0, %1}, [%2 + %3];" \
    : "=f"((v)[0]), "=f"((v)[1]) : "r"(at), "n"(offset) : "memory")

// Adds the products of `count` pieces, at most GROUP, to an item's sums of two columns 8 apart. `piece`
// is where the first one is in local memory; `x` and `totals` are what it is multiplied by.
#define ADD_PIECES(sums, piece, x, totals, count, lane) \
  { \
    const int column_ = (lane) / 4, t_ = (lane) % 4; \
    const int read_ = min(column_ / (2 * SPAN), (count) - 1), row_ = min(column_ % SPAN, ROWS - 1); \
    const int own_ = t_ / SPAN; \
    uint rows_[4], bits_[SIDE / 4]; \
    float numbers_[SIDE_COUNT], totals_[PAIR], dots_[2][PAIR] = {{0.0f, 0.0f}, {0.0f, 0.0f}}; \
    GET_WORDS4(rows_, (x) + (row_ * PITCH + read_ * PIECE + column_ / SPAN % 2 * 32 + t_ * 8) * 2, 0); \
    const uint side_ = (piece) + min(own_, (count) - 1) * PIECE_BYTES + WORD_BYTES + column_ * SIDE; \
    if (SIDE == 8) GET_WORDS2(bits_, side_, 0); \
    if (SIDE >= 16) GET_WORDS4(bits_, side_, 0); \
    if (SIDE == 32) GET_WORDS4(bits_ + SIDE / 4 - 4, side_, 16); \
    GET_FLOATS2(totals_, (totals) + min(t_, (count) * SPAN - 1) * 8, 0); \
    /* Words of all pieces, so that none is waited for alone; those beyond the last are not counted. */ \
    uint words_[GROUP][4]; \
    const uint at_ = (piece) + (lane) * 16; \
    GET_WORDS4(words_[0], at_, 0); \
    if (GROUP > 1) GET_WORDS4(words_[GROUP > 1 ? 1 : 0], at_, PIECE_BYTES); \
    if (GROUP > 2) GET_WORDS4(words_[GROUP > 2 ? 2 : 0], at_, 2 * PIECE_BYTES); \
    if (GROUP > 2) GET_WORDS4(words_[GROUP > 2 ? 3 : 0], at_, 3 * PIECE_BYTES); \
    multiply_piece(dots_, words_[0], rows_, 0, t_); \
    if (GROUP > 1) multiply_piece(dots_, words_[GROUP > 1 ? 1 : 0], rows_, 1, t_); \
    if (GROUP > 2 && (count) > 2) { \
      multiply_piece(dots_, words_[GROUP > 2 ? 2 : 0], rows_, 2, t_); \
      multiply_piece(dots_, words_[GROUP > 2 ? 3 : 0], rows_, 3, t_); \
    } \
    numbers_of(numbers_, bits_); \
    if (own_ < (count)) add_scaled(sums, dots_, numbers_, totals_, t_); \
  }

// Keeps the products of a block in the items whose columns represent it.
void multiply_block(
    float dots[2][PAIR], const uint low, const uint high, const uint* rows, const int piece,
    const int b, const int t
) {
  const uint even[4] = {low & 0x000f000f, high & 0x000f000f, low >> 8 & 0x000f000f,
                        high >> 8 & 0x000f000f};
  const uint odd[4] = {low & 0x00f000f0, high & 0x00f000f0, low >> 8 & 0x00f000f0,
                       high >> 8 & 0x00f000f0};
  float first[4] = {0.0f, 0.0f, 0.0f, 0.0f}, second[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  MULTIPLY(first, even, rows);
  MULTIPLY(second, odd, rows + 2);
  #pragma unroll
  for (int h = 0; h < 2; h++)
    #pragma unroll
    for (int e = 0; e < PAIR; e++) {
      if (SPAN == 1 && e != b) continue;
      const bool is_own = SPAN == 1 ? t == piece : t / (SPAN / 2 + (SPAN == 1)) == piece * 2 + b;
      const float dot = fma(second[h * 2 + e], 0.0625f, first[h * 2 + e]);
      dots[h][e] = is_own ? dot : dots[h][e];
    }
}

void multiply_piece(
    float dots[2][PAIR], const uint* words, const uint* rows, const int piece, const int t
) {
  multiply_block(dots, words[0], words[1], rows, piece, 0, t);
  multiply_block(dots, words[2], words[3], rows, piece, 1, t);
}

void add_scaled(
    float sums[2][PAIR], const float dots[2][PAIR], const float* numbers, const float* totals,
    const int t
) {
  #pragma unroll
  for (int h = 0; h < 2; h++)
    #pragma unroll
    for (int e = 0; e < PAIR; e++) {
      const bool is_second = SPAN == 1 ? e == 1 : t / (SPAN / 2 + (SPAN == 1)) % 2 == 1;  // block
      const float scale = is_second ? numbers[h * 2 + 1] : numbers[h * 2];
#ifdef ZERO
      sums[h][e] = fma(scale, dots[h][e] + totals[e], sums[h][e]);
#else
      sums[h][e] = fma(scale, dots[h][e], sums[h][e]);
      const float offset = is_second ? numbers[4 + h * 2 + 1] : numbers[4 + h * 2];
      sums[h][e] = fma(offset, totals[e], sums[h][e]);
#endif
    }
}

// The sums of all pieces of a warp to (row, column).
void put_sums(
    __local float* to, float sums[2][PAIR], const int lane, __local float* shared, const int tid
) {
  const int column = lane / 4, t = lane % 4;
  #pragma unroll
  for (int h = 0; h < 2; h++) {
    if (SPAN == 1) sums[h][0] += sums[h][1];
    #pragma unroll
    for (int e = 0; e < (SPAN == 1 ? 1 : PAIR); e++) {
      if (SPAN < 4) sums[h][e] += from_lane(sums[h][e], lane ^ 1, shared, tid);
      sums[h][e] += from_lane(sums[h][e], lane ^ 2, shared, tid);
      const int row = SPAN == 4 ? t * PAIR + e : e;
      if (t < (SPAN == 4 ? 2 : 1) && row < ROWS) to[row * TILE + h * 8 + column] = sums[h][e];
    }
  }
}
#define UNPACK8(v, bits) unpack8(v, bits)
// Eight numbers as halves; the numbers become what these are.
#define ROUND8(v, bits) \
  { \
    bits = (uint4)(pack2((v)[0], (v)[1]), pack2((v)[2], (v)[3]), pack2((v)[4], (v)[5]), \
                   pack2((v)[6], (v)[7])); \
    unpack8(v, bits); \
  }
#else
#define PAIR 1

// Adds a piece's products to an item's sums of two columns 8 apart, and one row.
void add_piece(
    float sums[2][PAIR], __global const uchar* piece, const int column, __local const half* x,
    __local const float* totals
) {
  for (int b = 0; b < 2; b++)
    for (int h = 0; h < 2; h++) {
      __global const SCALES* scale = scale_of(piece, column + h * 8, b);
      float dot = 0.0f;
      for (int t = 0; t < 4; t++) {
        const uint word = word_of(piece, column + h * 8, b, t);
        float v[8];
        GET_LOCAL8(v, x + b * 32 + t * 8);
        for (int i = 0; i < 8; i++) dot = fma((float)(word >> PLACE(i) * 4 & 15), v[i], dot);
      }
#ifdef ZERO
      sums[h][0] = fma(GET_SCALE(scale, 0), dot + totals[b * SPAN], sums[h][0]);
#else
      sums[h][0] = fma(GET_SCALE(scale, 0), dot, sums[h][0]);
      sums[h][0] = fma(GET_SCALE(OFFSET_OF(scale), 0), totals[b * SPAN], sums[h][0]);
#endif
    }
}

void put_sums(
    __local float* to, float sums[2][PAIR], const int lane, __local float* shared, const int tid
) {
  const int column = lane / 4, row = lane % 4;
  for (int h = 0; h < 2 && row < ROWS; h++) to[row * TILE + h * 8 + column] = sums[h][0];
}
#define UNPACK8(v, bits) vstore8(vload_half8(0, (const half*)&(bits)), 0, v)
#define ROUND8(v, bits) \
  { \
    vstore_half8(vload8(0, v), 0, (half*)&(bits)); \
    UNPACK8(v, bits); \
  }
#endif
