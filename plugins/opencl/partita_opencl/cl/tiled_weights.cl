// Weights of 4 bits in tiles of 16 columns, as a warp's matrix units take them. A tile is `pieces`
// pieces of 64 elements of each column. Of a piece, item (column % 8) * 4 + t of a warp has sixteen
// bytes: elements 8 * t to 8 * t + 7 of both blocks of 32, of the column and of the one 8 behind it.
// Then come the scales of both columns and blocks, for each of 8 columns, and their offsets.
//
// To be included behind block_weights.cl, whose offsets have the type of scales here; a block of more
// than 32 elements has its scale several times.

#define TILE 16
#define PIECE 64
#define WORD_BYTES 512
#ifdef ZERO
#define SIDE_COUNT 4  // scales of a column and the one 8 behind it, and offsets
#else
#define SIDE_COUNT 8
#endif
#define SIDE (SIDE_COUNT * (int)sizeof(RAW(SCALES)))
// The element stored i-th of eight of a row: pairs are half a word apart.
#define PLACE(i) ((i) % 2 * 4 + (i) / 2 % 2 * 2 + (i) / 4)
#define PIECE_BYTES (WORD_BYTES + 8 * SIDE)

__global const uchar* piece_of(
    __global const uchar* w, const int tile, const int pieces, const int piece
) {
  return w + ((size_t)tile * pieces + piece) * PIECE_BYTES;
}

// Elements 8 * t to 8 * t + 7 of a block of a piece.
uint word_of(__global const uchar* piece, const int column, const int block, const int t) {
  return ((__global const uint*)piece)[(column % 8 * 4 + t) * 4 + block * 2 + column / 8];
}

__global const SCALES* scale_of(__global const uchar* piece, const int column, const int block) {
  return (__global const SCALES*)(piece + WORD_BYTES + column % 8 * SIDE) + column / 8 * 2 + block;
}

// The offset that belongs to a scale.
#define OFFSET_OF(scale) ((scale) + 4)

#ifdef NVIDIA
// Scales of a column and the one 8 behind it for both blocks, then offsets.
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
#endif
