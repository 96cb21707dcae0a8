// Attention of many new tokens over keys and values as halves, which they have joined, by matrix units:
// softmax(scale * q k') v. Heads of queries that share a head of keys are rows of one work-group, row r
// being head r % GROUP of them, of token r / GROUP; a group has WARPS * TALL * 16 rows and reads keys
// and values once for all. For NVIDIA's devices.
//
// Options: those of cache_tokens.cl and attention_tiles.cl; WARPS
//   HEADS    of keys; GROUP of them of queries share one
//   WINDOW   a token sees only so many keys, its own included; SOFTCAP  scores stay below it
//   SEES_ALL a token sees later ones too; BIASED  a number is added to each score

#include "cache_tokens.cl"
#include "warp_units.cl"
#include "attention_tiles.cl"

#define ITEMS (WARPS * 32)
#define GROUP_ROWS (WARPS * TALL * 16)

// Eight elements of a query, from d on, turned by their token's position and scaled.
uint4 turned8(
    __global const half* from, const int d, const int position,
    __global const TABLE* cosines, __global const TABLE* sines, const float scale
) {
  float own[8], other[8];
  GET_HALF8(own, from, d);
#if ROTATED % 16 == 0 && !defined(INTERLEAVED)
  GET_HALF8(other, from, partner_of(d));
#else
  #pragma unroll
  for (int i = 0; i < 8; i++) other[i] = GET_HALF(from, partner_of(d + i));
#endif
  #pragma unroll
  for (int i = 0; i < 8; i++)
    own[i] = scale * turned_pair(own[i], other[i], d + i, position, cosines, sines);
  return (uint4)(pack2(own[0], own[1]), pack2(own[2], own[3]), pack2(own[4], own[5]),
      pack2(own[6], own[7]));
}

// A score times log2(e) and what is added to it; the lowest numbers that masks have stay finite.
float added(const float score, const float bias) {
  const bool is_low = bias < -2e38f && bias > -INFINITY;
  return fma(is_low ? -2e38f : bias, M_LOG2E_F, score);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void cache_prompt(
    __global const half* restrict q, __global const half* restrict keys,
    __global const half* restrict values,
    __global const LENGTH* restrict lengths, __global const LENGTH* restrict total,
    __global const TABLE* restrict cosines, __global const TABLE* restrict sines,
    __global const BIAS* restrict bias, __global half* restrict y,
    volatile __global int* restrict fault,
    const int batch, const int tokens, const int places, const int turns,
    const int2 step,  // of queries: from one token to the next, the first element
    const int4 bias_step,  // of the bias: from one row, head and token to the next; keys it is for
    const float scale, const int mark
) {
  __local char q_tile[GROUP_ROWS * CHUNKS * 16] __attribute__((aligned(1024)));
  __local char k_tile[2][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
  __local char v_tile[2][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int tiles = (tokens * GROUP + GROUP_ROWS - 1) / GROUP_ROWS;
  // The last rows see most keys: they come first.
  const int first = (tiles - 1 - get_group_id(0) / (HEADS * batch)) * GROUP_ROWS;
  const int head = get_group_id(0) % HEADS, row = get_group_id(0) / HEADS % batch;
  const int2 span = span_of(lengths[row], GET_TOTAL(total), row, tokens,
      min(places, bias_step.w), turns, fault, mark);
  const int before = span.x, valid = min(tokens, span.y - span.x);
  const size_t cache = ((size_t)row * HEADS + head) * places * SIZE;
  keys += cache;
  values += cache;

#ifdef SEES_ALL
  const int end = span.y;
#else
  const int end =
      max(0, min(span.y, before + min((first + GROUP_ROWS - 1) / GROUP, tokens - 1) + 1));
#endif
#ifdef WINDOW
  const int begin = max(0, min(end, before + first / GROUP - WINDOW + 1));
#else
  const int begin = 0;
#endif
  COPY_BLOCK(k_tile[0], keys, SIZE, begin, end, SIZE)
  COPY_BLOCK(v_tile[0], values, SIZE, begin, end, SIZE)
  for (int i = tid; i < GROUP_ROWS * (HD / 8); i += ITEMS) {
    const int r = i / (HD / 8), c = i % (HD / 8);
    const int token = (first + r) / GROUP, of_group = (first + r) % GROUP;
    uint4 query = (uint4)(0);
    if (token < valid && c * 8 < SIZE) {
      __global const half* from = q + ((size_t)row * tokens + token) * step.x + step.y +
                                  (head * GROUP + of_group) * SIZE;
      query = turned8(from, c * 8, before + token, cosines, sines, scale * M_LOG2E_F);
    }
    *(__local uint4*)(q_tile + PLACE(r, c)) = query;
  }

  float peak[ROWS_OF_ITEM], sum[ROWS_OF_ITEM], out[TALL * HD / 8][4];
  start_sums(out, peak, sum);

  int stage = 0;
  for (int key0 = begin; key0 < end; key0 += BLOCK, stage ^= 1) {
    ARRIVED(0);
    barrier(CLK_LOCAL_MEM_FENCE);  // this stage is there for all, and the other one is read no more
    COPY_BLOCK(k_tile[stage ^ 1], keys, SIZE, key0 + BLOCK, end, SIZE)
    COPY_BLOCK(v_tile[stage ^ 1], values, SIZE, key0 + BLOCK, end, SIZE)
    float s[TALL * BLOCK / 8][4];
    multiply_keys(s, q_tile, k_tile[stage], warp * TALL * 16, lane);
    // Whether all rows see all keys of the block, so that scores are taken as they are.
    bool all_seen = key0 + BLOCK <= end;
#ifndef SEES_ALL
    all_seen = all_seen && key0 + BLOCK - 1 <= before + first / GROUP;
#endif
#ifdef WINDOW
    all_seen = all_seen && key0 > before + (first + GROUP_ROWS - 1) / GROUP - WINDOW;
#endif
#if defined(SOFTCAP) || defined(BIASED)
    all_seen = false;
#endif
    #pragma unroll
    for (int h = 0; h < ROWS_OF_ITEM; h++) {
      const int r = first + warp * TALL * 16 + ROW_OF(h), here = before + r / GROUP;
#ifdef BIASED
      const size_t bias_row =
          (size_t)row * bias_step.x + (size_t)(head * GROUP + r % GROUP) * bias_step.y +
          (size_t)min(r / GROUP, tokens - 1) * bias_step.z;
#endif
      if (!all_seen) {
        #pragma unroll
        for (int j = 0; j < BLOCK / 8; j++)
          #pragma unroll
          for (int e = 0; e < 2; e++) {
            const int place = key0 + COLUMN_OF(j, e);
            float score = SCORE_OF(s, h, j, e);
            bool sees = place < end;
#ifndef SEES_ALL
            sees = sees && place <= here;
#endif
#ifdef WINDOW
            sees = sees && place > here - WINDOW;
#endif
#ifdef SOFTCAP
            score = SOFTCAP * M_LOG2E_F * tanh_of(score / (SOFTCAP * M_LOG2E_F));
#endif
#ifdef BIASED
            if (sees) score = added(score, GET_BIAS(bias, bias_row + place));
#endif
            SCORE_OF(s, h, j, e) = sees ? score : -INFINITY;
          }
      }
      take_powers(s, out, peak, sum, h);
    }
    multiply_values(out, s, v_tile[stage], lane);
  }
  ARRIVED(0);
  #pragma unroll
  for (int h = 0; h < ROWS_OF_ITEM; h++) {
    OVER_ROW(sum[h], PLUS)
    const int r = first + warp * TALL * 16 + ROW_OF(h), token = r / GROUP;
    if (token >= tokens) continue;
    const bool is_zero = sum[h] == 0.0f || token >= valid;
    const float factor = 1.0f / sum[h];
    const size_t result = (((size_t)row * tokens + token) * HEADS + head) * GROUP + r % GROUP;
    #pragma unroll
    for (int j = 0; j < HD / 8; j++)
      if (j * 8 < SIZE)
        PUT_HALF2(y, result * SIZE + COLUMN_OF(j, 0),
            (is_zero ? (float2)(0.0f)
                     : (float2)(OUT_OF(out, h, j, 0), OUT_OF(out, h, j, 1)) * factor));
  }
}
