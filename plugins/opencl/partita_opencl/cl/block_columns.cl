// A unit of each of COLUMNS neighbouring columns, of weights in blocks of few bits.
//
// To be included behind block_weights.cl. Options: COLUMNS

typedef struct {
  uint words[COLUMNS][4];
  RAW(SCALES) scales[COLUMNS][PARTS];
#ifndef ZERO
  RAW(OFFSETS) offsets[COLUMNS][PARTS];
#endif
} Weights;

// Loads only, so that none is waited for here: values are converted where they are used.
void fetch(
    Weights* to, __global const uint4* w, __global const SCALES* scales,
    __global const OFFSET_TYPE* offsets, const int n0, const int columns, const int units,
    const int blocks, const int unit
) {
  #pragma unroll
  for (int c = 0; c < COLUMNS; c++) {
    const size_t n = min(n0 + c, columns - 1);
    vstore4(w[n * units + unit], 0, to->words[c]);
#ifndef UNSCALED
    #pragma unroll
    for (int p = 0; p < PARTS; p++) {
      // The last unit may have parts beyond the last block; its elements are multiplied by zeros.
      const size_t at = n * blocks + min(FIRST_BLOCK(unit) + p, blocks - 1);
      to->scales[c][p] = ((__global const RAW(SCALES)*)scales)[at];
#ifndef ZERO
      to->offsets[c][p] = ((__global const RAW(OFFSETS)*)offsets)[at];
#endif
    }
#endif
  }
}
