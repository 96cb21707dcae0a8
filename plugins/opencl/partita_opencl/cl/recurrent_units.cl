// The steps of LSTM, GRU and RNN of halves by matrix units, which keep the recurrent weights in
// registers. A work-group, or SHARES of them that wait for one another, walks through one sequence in
// one direction. A warp computes the gates of eight elements of the state: a fragment of 16 rows has
// two gates of each, and items of a row hold all gates of its element. Without the option NVIDIA,
// items compute the same sums by ordinary arithmetic. Inputs are those of recurrent.cl, but for
// recurrent weights, which are (directions, gates, HIDDEN) as the operators have them.
//
// Options: LSTM, GRU or RNN, HIDDEN  elements of a state, a multiple of 8, WARPS, SHARES, DIRECTIONS
//   FUNCTION0, FUNCTION1, FUNCTION2  activations, of both directions
//   LENGTHS, BIAS, PEEPHOLES, INITIAL_H, INITIAL_C  the inputs that are given
//   BATCH_FIRST  sequences come before steps, INPUT_FORGET  an attribute; GRU has its reset gate after
//   the product

#include "recurrent_gates.cl"
#include "warp_units.cl"
#if SHARES > 1
#include "waiting.cl"
#endif

#define ITEMS (WARPS * 32)
#define TILES ((GATES + 1) / 2)
#define CHUNKS ((HIDDEN + 31) / 32)
#define STATE(s) ((__local half*)states[s])

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void recurrent_units(
    __global const half* restrict x, __global const half* restrict weights,
    __global const half* restrict bias, __global const half* restrict peepholes,
    __global const int* restrict lengths, __global const half* restrict initial_h,
    __global const half* restrict initial_c, __global const float* restrict parameters,
    __global half* restrict y, __global half* restrict final_h, __global half* restrict final_c,
#if SHARES > 1
    __global half* exchanged, __global int* counters, __global int* stall,
#endif
    const long steps, const long batch, const int2 backwards, const float clip
) {
  __local ushort states[2][CHUNKS * 32] __attribute__((aligned(16)));
  const int tid = get_local_id(0), quarter = tid % 4;
  const long sequence = get_group_id(0) / SHARES;
  const long direction = sequence / batch, element = sequence % batch;
  const int unit = (int)(get_group_id(0) % SHARES) * (WARPS * 8) + tid / 4;
  const bool inside = unit < HIDDEN, mine = inside && quarter == 0;
  const bool reversed = direction ? backwards.s1 : backwards.s0;
#ifdef BATCH_FIRST
  const long place = (element * DIRECTIONS + direction) * HIDDEN;
#else
  const long place = sequence * HIDDEN;
#endif
  weights += direction * ROW * HIDDEN;
  parameters += direction * FUNCTIONS * 2;
#if SHARES > 1
  __local int word;
  exchanged += sequence * 2 * HIDDEN;
  counters += sequence * 2 * LINE;
#endif

  for (int i = tid; i < CHUNKS * 32; i += ITEMS) {
    states[0][i] = states[1][i] = 0;
#ifdef INITIAL_H
    if (i < HIDDEN) PUT_HALF(STATE(0), i, GET_HALF(initial_h, place + i));
#endif
  }
  float h = 0.0f, c = 0.0f, added[GATES];
#ifdef INITIAL_H
  if (mine) h = GET_HALF(initial_h, place + unit);
#endif
#ifdef INITIAL_C
  if (mine) c = GET_HALF(initial_c, place + unit);
#endif
  #pragma unroll
  for (int g = 0; g < GATES; g++) {
    added[g] = 0.0f;
#ifdef BIAS
    if (mine) added[g] = GET_HALF(bias, direction * 2 * ROW + ROW + g * HIDDEN + unit);
#endif
  }
#ifdef PEEPHOLES
  float peeped[3];
  for (int g = 0; g < 3; g++)
    peeped[g] = mine ? GET_HALF(peepholes, (direction * 3 + g) * HIDDEN + unit) : 0.0f;
#endif
#ifdef NVIDIA
  // Of every 32 terms, an item has eight neighbours: two steps of the products take them in turn.
  uint kept[TILES][CHUNKS][2][4];
  #pragma unroll
  for (int t = 0; t < TILES; t++)
    #pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      const int at = k * 32 + quarter * 8;
      __global const half* from = weights + ((long)2 * t * HIDDEN + unit) * HIDDEN + at;
      uint4 low = (uint4)(0), high = (uint4)(0);
      if (inside && at < HIDDEN) {
        low = *(__global const uint4*)from;
        if (2 * t + 1 < GATES) high = *(__global const uint4*)(from + (long)HIDDEN * HIDDEN);
      }
      kept[t][k][0][0] = low.x; kept[t][k][0][1] = high.x;
      kept[t][k][0][2] = low.y; kept[t][k][0][3] = high.y;
      kept[t][k][1][0] = low.z; kept[t][k][1][1] = high.z;
      kept[t][k][1][2] = low.w; kept[t][k][1][3] = high.w;
    }
#endif
  barrier(CLK_LOCAL_MEM_FENCE);

  long length = steps;
#ifdef LENGTHS
  length = min(steps, max(0L, (long)lengths[element]));
#endif
  // Where a step's rows begin, and how far it is to those of the next one.
  const long first = reversed ? length - 1 : 0, forward = reversed ? -1 : 1;
#ifdef BATCH_FIRST
  const long turns = DIRECTIONS, row = (element * steps + first) * DIRECTIONS + direction;
  const long pitch = DIRECTIONS * HIDDEN, out = row * HIDDEN;
#else
  const long turns = batch * DIRECTIONS, row = (first * batch + element) * DIRECTIONS + direction;
  const long pitch = turns * HIDDEN;
  const long out = ((first * DIRECTIONS + direction) * batch + element) * HIDDEN;
#endif
  __global const ushort* coming_row = (__global const ushort*)x + row * ROW + unit;
  __global half* result = y + out + unit;
  const long next_row = forward * turns * ROW, next_result = forward * pitch;
// Addends of the next step are loaded while this one multiplies; converting them would wait.
#define BRING() { \
    if (mine) \
      for (int g = 0; g < GATES; g++) coming[g] = coming_row[g * HIDDEN]; \
    coming_row += next_row; }
  // Element by element: of an array that is filled as a whole, PoCL's optimizer lets items share one.
  ushort coming[GATES];
  #pragma unroll
  for (int g = 0; g < GATES; g++) coming[g] = 0;
  if (length > 0) BRING()
  for (long step = 0; step < length; step++) {
    const int from = step % 2, to = 1 - from;
    float own[GATES], sums[GATES];
    ushort came[GATES];
    #pragma unroll
    for (int g = 0; g < GATES; g++) came[g] = coming[g];
    if (step + 1 < length) BRING()
#ifdef NVIDIA
    float even[TILES][4], odd[TILES][4];
    #pragma unroll
    for (int t = 0; t < TILES; t++)
      #pragma unroll
      for (int q = 0; q < 4; q++) even[t][q] = odd[t][q] = 0.0f;
    #pragma unroll
    for (int k = 0; k < CHUNKS; k++) {
      const uint4 terms = *(__local const uint4*)(states[from] + k * 32 + quarter * 8);
      const uint first[2] = {terms.x, terms.y}, second[2] = {terms.z, terms.w};
      #pragma unroll
      for (int t = 0; t < TILES; t++) {
        MULTIPLY(even[t], kept[t][k][0], first);
        MULTIPLY(odd[t], kept[t][k][1], second);
      }
    }
    // All columns of a product are alike: they have the same state.
    #pragma unroll
    for (int g = 0; g < GATES; g++)
      sums[g] = even[g / 2][g % 2 * 2] + odd[g / 2][g % 2 * 2] + added[g];
#else
    for (int g = 0; g < GATES; g++) {
      sums[g] = added[g];
      if (!mine) continue;
      for (int i = 0; i < HIDDEN; i++)
        sums[g] += GET_LOCAL(STATE(from), i) *
                   GET_HALF(weights, ((long)g * HIDDEN + unit) * HIDDEN + i);
    }
#endif
    #pragma unroll
    for (int g = 0; g < GATES; g++) own[g] = GET_HALF((half*)came, g);
#define FUNCTION(n, v) function_of(v, FUNCTION##n, parameters + 2 * n)
#define TOTAL(g) sums[g]
#define CELL c
#define PEEP(n) peeped[n]
#define BEFORE h
#define RESULT h
#include "recurrent_step.cl"
#if SHARES > 1
    if (mine) PUT_HALF(exchanged, to * HIDDEN + unit, h);
    if (step + 1 < length) {
      barrier(CLK_GLOBAL_MEM_FENCE);
      if (tid == 0) {
        ORDER();
        SIGNAL(counters)
      }
      if (!all_came(counters, SHARES * (int)(step + 1), stall, &word, tid)) return;
      for (int i = tid; i < HIDDEN / 8; i += ITEMS) {
        float4 bits;
        GET_FRESH4(bits, (__global const float4*)(exchanged + to * HIDDEN) + i);
        *(__local float4*)(states[to] + i * 8) = bits;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
#else
    if (mine) PUT_HALF(STATE(to), unit, h);
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    if (mine) PUT_HALF(result, 0, h);
    result += next_result;
  }
#if SHARES > 1
  leave_zeros(counters, 1, SHARES, tid);
  barrier(CLK_LOCAL_MEM_FENCE);  // PoCL loses stores of some items behind the last one
#endif

  if (!mine) return;
  PUT_HALF(final_h, place + unit, h);
#ifdef LSTM
  PUT_HALF(final_c, place + unit, c);
#endif
  result = y + out + unit + (length - first) * pitch;
  for (long time = length; time < steps; time++, result += pitch) PUT_HALF(result, 0, 0.0f);
}
