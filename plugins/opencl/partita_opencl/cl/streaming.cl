// Tiles of float16 that stream into local memory, and their products by a warp's matrix units: what
// kernels over rows of 64 terms share. Without the option NVIDIA, items copy and compute the same by
// ordinary instructions.
//
// Options: BM BN  tile sizes, WM WN  warps along them
//   WARPGROUP  multiply by wgmma, for whose BN the macro WGMMA(sums, a, b) is generated

#include "warp_units.cl"

#define BK 64
#define ITEMS (WM * WN * 32)
#define A_ROWS (BM / WM / 16)
#define B_COLUMNS (BN / WN / 8)
#define FRAGMENTS (A_ROWS * B_COLUMNS)
#define LOAD_ROWS (ITEMS / 8)
#define A_LOADS (BM / LOAD_ROWS)
#define B_LOADS (BN / LOAD_ROWS)
#define A_BYTES (BM * 128)
#define STAGE_BYTES ((BM + BN) * 128)
// Rows of 64 halves; eight chunks of 16 bytes of a row are permuted by the row's number.
#define CHUNK(row, chunk) ((row) * 128 + (((chunk) ^ ((row) & 7)) << 4))

#ifndef NVIDIA
#define COPY(to, from, bytes) copy_chunk(to, from, bytes)
#define COMMIT()
#define ARRIVED(later)

void copy_chunk(__local char* to, __global const half* from, const int bytes) {
  __local ushort* halves = (__local ushort*)to;
  for (int i = 0; i < 8; i++)
    halves[i] = i * 2 < bytes ? ((__global const ushort*)from)[i] : (ushort)0;
}
#endif

#if defined(WARPGROUP) && defined(NVIDIA)
// The driver's compiler refuses these unless they are hidden; see hopper_ptx.py.
#define WG_FENCE() asm volatile("//@@wgmma.fence.sync.aligned;" ::: "memory")
#define WG_COMMIT() asm volatile("//@@wgmma.commit_group.sync.aligned;" ::: "memory")
#define WG_WAIT(n) asm volatile("//@@wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
// Of rows of 128 bytes whose chunks are permuted as above, eight rows apart by 1024 bytes.
#define DESCRIPTOR(address) \
  ((1UL << 62) | (64UL << 32) | (1UL << 16) | (ulong)(((address) >> 4) & 0x3FFF))
/*@generated@*/
#endif

// Adds the product of two tiles of 64 terms to the sums of an item.
void multiply_tiles(
    float* sums, __local const char* a_tile, __local const char* b_tile, const int warp_m,
    const int warp_n, const int lane
) {
#ifdef NVIDIA
  #pragma unroll
  for (int kk = 0; kk < BK / 8; kk += 2) {
    uint av[A_ROWS][4], bv[B_COLUMNS][2];
    #pragma unroll
    for (int i = 0; i < A_ROWS; i++) {
      // Four matrices of 8 x 8: rows 0 and 8 of the first eight k, then of the next eight.
      const int row = warp_m + i * 16 + lane % 16;
      LOAD_FRAGMENTS(av[i][0], av[i][1], av[i][2], av[i][3],
                     a_tile + CHUNK(row, kk + lane / 16));
    }
    #pragma unroll
    for (int j = 0; j < B_COLUMNS; j += 2) {
      // Filters 0 of the first and the next eight k, then filters 8 of both.
      const int row = warp_n + j * 8 + lane / 16 * 8 + lane % 8;
      LOAD_FRAGMENTS(bv[j][0], bv[j][1], bv[j + 1][0], bv[j + 1][1],
                     b_tile + CHUNK(row, kk + lane / 8 % 2));
    }
    #pragma unroll
    for (int i = 0; i < A_ROWS; i++)
      #pragma unroll
      for (int j = 0; j < B_COLUMNS; j++)
        MULTIPLY(sums + (i * B_COLUMNS + j) * 4, av[i], bv[j]);
  }
#else
  for (int f = 0; f < FRAGMENTS * 4; f++) {
    const int m = warp_m + lane / 4 + f / 4 / B_COLUMNS * 16 + f % 4 / 2 * 8;
    const int n = warp_n + lane % 4 * 2 + f / 4 % B_COLUMNS * 8 + f % 2;
    float sum = sums[f];
    for (int q = 0; q < BK; q++)
      sum += GET_LOCAL((__local const half*)(a_tile + CHUNK(m, q / 8)), q % 8) *
             GET_LOCAL((__local const half*)(b_tile + CHUNK(n, q / 8)), q % 8);
    sums[f] = sum;
  }
#endif
}
