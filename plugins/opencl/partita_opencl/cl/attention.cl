// Attention of halves: y = softmax(scale * q k' + mask) v for every batch and head, with the scores
// in registers. A group computes WARPS * 16 rows of one head. Elements of a head are neighbours in
// memory and a multiple of eight. Without the option NVIDIA, an item computes one row by ordinary
// arithmetic.
//
// Options: those of attention_tiles.cl; WARPS, MASK
//   ONE_BLOCK  there are at most BLOCK keys
//   NAN_IS_ZERO  a row without keys is 0

#define TALL 1
#include "warp_units.cl"
#include "attention_tiles.cl"

#ifdef NAN_IS_ZERO
#define INVERSE(total) ((total) > 0.0f ? 1.0f / (total) : 0.0f)
#else
#define INVERSE(total) (1.0f / (total))
#endif
#define ITEMS (WARPS * 32)

// Strides are x: batch, y: head, z: row; w: where the tensor's elements start.
#ifdef NVIDIA
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#else
__kernel
#endif
void attention(
    __global const half* restrict q, __global const half* restrict k,
    __global const half* restrict v, __global const half* restrict mask, __global half* restrict y,
    const int heads, const int rows, const int keys, const int elements,
    const int4 q_step, const int4 k_step, const int4 v_step, const int4 y_step,
    const int4 mask_step,  // w: step per key
    const float scale
) {
#ifdef NVIDIA
  const int blocks = (rows + WARPS * 16 - 1) / (WARPS * 16);
  const int head = get_group_id(0) / blocks % heads, batch = get_group_id(0) / blocks / heads;
  const int first_row = get_group_id(0) % blocks * (WARPS * 16);
#else
  const int head = get_global_id(0) / rows % heads, batch = get_global_id(0) / rows / heads;
  const int row = get_global_id(0) % rows;
#endif
  q += q_step.w + (size_t)batch * q_step.x + (size_t)head * q_step.y;
  k += k_step.w + (size_t)batch * k_step.x + (size_t)head * k_step.y;
  v += v_step.w + (size_t)batch * v_step.x + (size_t)head * v_step.y;
  y += y_step.w + (size_t)batch * y_step.x + (size_t)head * y_step.y;
#ifdef MASK
  mask += (size_t)batch * mask_step.x + (size_t)head * mask_step.y;
  #define MASK_AT(row, key) GET(mask, (size_t)(row) * mask_step.z + (key) * mask_step.w)
#ifdef NAN_IS_ZERO
  #define ADDED(row, key) MASK_AT(row, key)
#else
  // The smallest half, where there is infinity: a row without keys is some mean, not NaN.
  #define ADDED(row, key) fmax(MASK_AT(row, key), -65504.0f)
#endif
#else
  #define ADDED(row, key) 0.0f
#endif

#ifdef NVIDIA
  __local char q_tile[WARPS * 16 * CHUNKS * 16] __attribute__((aligned(1024)));
#ifdef ONE_BLOCK
#define AFTER(n) (n)
  __local char k_tile[1][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
  __local char v_tile[1][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
#else
#define AFTER(n) ((n) + 2)  // groups of copies for the next block may be under way
  __local char k_tile[2][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
  __local char v_tile[2][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
#endif
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  for (int i = tid; i < WARPS * 16 * (HD / 8); i += ITEMS) {
    const int r = i / (HD / 8), c = i % (HD / 8);
    const bool there = first_row + r < rows && c * 8 < elements;
    COPY(q_tile + PLACE(r, c), q + (size_t)(first_row + r) * q_step.z + c * 8, there ? 16 : 0);
  }
  // Keys and values of a block are two groups of copies: products with keys start before the values
  // are there.
  COPY_BLOCK(k_tile[0], k, k_step.z, 0, keys, elements)
  COPY_BLOCK(v_tile[0], v, v_step.z, 0, keys, elements)

  const int row = first_row + warp * 16;
  float peak[ROWS_OF_ITEM], total[ROWS_OF_ITEM], out[TALL * HD / 8][4];
  start_sums(out, peak, total);

  int stage = 0;
  for (int key0 = 0; key0 < keys; key0 += BLOCK, stage ^= 1) {
#ifndef ONE_BLOCK
    barrier(CLK_LOCAL_MEM_FENCE);  // the other stage is read no more
    COPY_BLOCK(k_tile[stage ^ 1], k, k_step.z, key0 + BLOCK, keys, elements)
    COPY_BLOCK(v_tile[stage ^ 1], v, v_step.z, key0 + BLOCK, keys, elements)
#endif
    ARRIVED(AFTER(1));
    barrier(CLK_LOCAL_MEM_FENCE);

    float s[BLOCK / 8][4];
    multiply_keys(s, q_tile, k_tile[stage], warp * 16, lane);
    #pragma unroll
    for (int h = 0; h < ROWS_OF_ITEM; h++) {
      #pragma unroll
      for (int j = 0; j < BLOCK / 8; j++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
          const int key = key0 + COLUMN_OF(j, e);
          float score = SCORE_OF(s, h, j, e) * (scale * M_LOG2E_F);
#ifdef MASK
          if (row + ROW_OF(h) < rows && key < keys)
            score = fma(ADDED(row + ROW_OF(h), key), M_LOG2E_F, score);
#endif
          SCORE_OF(s, h, j, e) = key < keys ? score : -INFINITY;
        }
      take_powers(s, out, peak, total, h);
    }

    ARRIVED(AFTER(0));
    barrier(CLK_LOCAL_MEM_FENCE);
    multiply_values(out, s, v_tile[stage], lane);
  }
  ARRIVED(0);
  #pragma unroll
  for (int h = 0; h < ROWS_OF_ITEM; h++) {
    OVER_ROW(total[h], PLUS)
    if (row + ROW_OF(h) >= rows) continue;
    const float factor = INVERSE(total[h]);
    #pragma unroll
    for (int j = 0; j < HD / 8; j++)
      if (j * 8 < elements)
        PUT2(y, (size_t)(row + ROW_OF(h)) * y_step.z + COLUMN_OF(j, 0),
             ((float2)(OUT_OF(out, h, j, 0), OUT_OF(out, h, j, 1)) * factor));
  }
#else
  float out[HD], peak = NEVER, total = 0.0f;
  for (int e = 0; e < HD; e++) out[e] = 0.0f;
  for (int key = 0; key < keys; key++) {
    float score = 0.0f;
    for (int e = 0; e < elements; e++)
      score += GET(q, (size_t)row * q_step.z + e) * GET(k, (size_t)key * k_step.z + e);
    score = score * scale + ADDED(row, key);
    const float top = fmax(peak, score), shrink = exp(peak - top), p = exp(score - top);
    total = total * shrink + p;
    for (int e = 0; e < elements; e++)
      out[e] = out[e] * shrink + p * GET(v, (size_t)key * v_step.z + e);
    peak = top;
  }
  for (int e = 0; e < elements; e++) PUT(y, (size_t)row * y_step.z + e, out[e] * INVERSE(total));
#endif
}
