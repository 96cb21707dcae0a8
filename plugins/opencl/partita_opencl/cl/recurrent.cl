// The steps of LSTM, GRU and RNN. A work-group walks through one sequence in one direction; its
// items share the elements of the state, and PARTS of them the terms of each element's sums. Products
// of the input with its weights, and the bias that belongs to them, are made before, for all steps at
// once: x has rows of the gates of all directions. Recurrent weights come as (directions, HIDDEN,
// gates), so that neighbours read neighbours.
//
// Options: LSTM, GRU or RNN, HIDDEN  elements of a state, ITEMS, DIRECTIONS
//   PARTS  if it is not 1, ITEMS / PARTS are at least HIDDEN
//   LENGTHS, BIAS, PEEPHOLES, INITIAL_H, INITIAL_C  the inputs that are given
//   BATCH_FIRST  sequences come before steps, INPUT_FORGET, RESET_AFTER  attributes of the operator
//   GLOBAL_STATE  the state does not fit local memory

#ifdef HALF
#define M half
#else
#define M float
#endif

#include "recurrent_gates.cl"

#ifdef GLOBAL_STATE
#define STATE __global
#define SYNC() barrier(CLK_GLOBAL_MEM_FENCE)
#else
#define STATE __local
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE)
#endif

// EACH_ELEMENT: of the state, j, by all items whose part of its sums it is; MINE: whether the item
// goes on with it when parts are added.
#define COLUMNS (ITEMS / PARTS)
#if PARTS > 1
#define EACH_ELEMENT for (int j = lid % COLUMNS, once = 1; once; once = 0)
#define MINE (lid < COLUMNS && j < HIDDEN)
#else
#define EACH_ELEMENT for (int j = lid; j < HIDDEN; j += ITEMS)
#define MINE true
#endif
#define TERMS ((HIDDEN + PARTS - 1) / PARTS)

// Adds products of a state with columns of the recurrent weights to sums, one per gate.
void add_products(
    float* sums, STATE const float* state, __global const M* weights, const int from, const int to,
    const int part
) {
  for (int i = part * TERMS; i < min(HIDDEN, (part + 1) * TERMS); i++) {
    const float v = state[i];
    for (int g = from; g < to; g++)
      sums[g] = fma(v, GET(weights, (long)i * ROW + g * HIDDEN), sums[g]);
  }
}

#if PARTS > 1
// The sum of a gate over all parts.
float joined(__local const float* parts, const int lid, const int gate) {
  float sum = 0.0f;
  for (int part = 0; part < PARTS; part++) sum += parts[gate * ITEMS + part * COLUMNS + lid];
  return sum;
}
#define SUM(state, from, to) { \
    if (j < HIDDEN) add_products(sums, state, weights + j, from, to, lid / COLUMNS); \
    for (int g = from; g < to; g++) parts[g * ITEMS + lid] = sums[g]; \
    barrier(CLK_LOCAL_MEM_FENCE); }
#define TOTAL(g) joined(parts, lid, g)
#else
#define SUM(state, from, to) add_products(sums, state, weights + j, from, to, 0);
#define TOTAL(g) sums[g]
#endif

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void recurrent(
    __global const M* restrict x, __global const M* restrict weights,
    __global const M* restrict bias, __global const M* restrict peepholes,
    __global const int* restrict lengths, __global const M* restrict initial_h,
    __global const M* restrict initial_c, __global const int* restrict codes,
    __global const float* restrict parameters, __global M* restrict y,
    __global M* restrict final_h, __global M* restrict final_c, __global float* restrict states,
    const long steps, const long batch, const int2 backwards, const float clip
) {
  const long group = get_group_id(0), direction = group / batch, element = group % batch;
  const int lid = get_local_id(0);
  const bool reversed = direction ? backwards.s1 : backwards.s0;
#ifdef GLOBAL_STATE
  __global float* room = states + group * 3 * HIDDEN;
#else
  __local float room[3 * HIDDEN];
#endif
#if PARTS > 1
  __local float parts[GATES * ITEMS];
#endif
  STATE float* h = room;
  STATE float* next = room + HIDDEN;
  STATE float* c = room + 2 * HIDDEN;
#ifdef BATCH_FIRST
  const long place = (element * DIRECTIONS + direction) * HIDDEN;
#else
  const long place = group * HIDDEN;
#endif
  for (int j = lid; j < HIDDEN; j += ITEMS) {
    h[j] = 0.0f;
    c[j] = 0.0f;
#ifdef INITIAL_H
    h[j] = GET(initial_h, place + j);
#endif
#ifdef INITIAL_C
    c[j] = GET(initial_c, place + j);
#endif
  }
  SYNC();
  long length = steps;
#ifdef LENGTHS
  length = min(steps, max(0L, (long)lengths[element]));
#endif
  weights += direction * HIDDEN * ROW;
  codes += direction * FUNCTIONS;
  parameters += direction * FUNCTIONS * 2;

  for (long step = 0; step < length; step++) {
    const long time = reversed ? length - 1 - step : step;
#ifdef BATCH_FIRST
    const long row = element * steps + time, out = (row * DIRECTIONS + direction) * HIDDEN;
#else
    const long row = time * batch + element;
    const long out = ((time * DIRECTIONS + direction) * batch + element) * HIDDEN;
#endif
    const long gates = (row * DIRECTIONS + direction) * ROW;
    EACH_ELEMENT {
      float own[GATES], sums[GATES];
      for (int g = 0; g < GATES; g++) {
        own[g] = MINE ? GET(x, gates + g * HIDDEN + j) : 0.0f;
        sums[g] = 0.0f;
#ifdef BIAS
        if (MINE) sums[g] = GET(bias, direction * 2 * ROW + ROW + g * HIDDEN + j);
#endif
      }
#if defined(GRU) && !defined(RESET_AFTER)
      SUM(h, 0, 2)
#else
      SUM(h, 0, GATES)
#endif
      if (!MINE) continue;
#define FUNCTION(n, v) function_of(v, codes[n], parameters + 2 * (n))
#if defined(GRU) && !defined(RESET_AFTER)
      next[j] = FUNCTION(0, CLIPPED(own[0] + TOTAL(0)));
      c[j] = FUNCTION(0, CLIPPED(own[1] + TOTAL(1))) * h[j];
#else
#define CELL c[j]
#define PEEP(n) GET(peepholes, (direction * 3 + (n)) * HIDDEN + j)
#define BEFORE h[j]
#define RESULT next[j]
#include "recurrent_step.cl"
      PUT(y, out + j, next[j]);
#endif
    }
    SYNC();
#if defined(GRU) && !defined(RESET_AFTER)
    EACH_ELEMENT {
      float sums[GATES];
      sums[2] = 0.0f;
#ifdef BIAS
      if (MINE) sums[2] = GET(bias, direction * 2 * ROW + ROW + 2 * HIDDEN + j);
#endif
      SUM(c, 2, 3)
      if (!MINE) continue;
      const float fresh = FUNCTION(1, CLIPPED(GET(x, gates + 2 * HIDDEN + j) + TOTAL(2)));
      h[j] = (1.0f - next[j]) * fresh + next[j] * h[j];
      PUT(y, out + j, h[j]);
    }
    SYNC();
#else
    STATE float* last = h;
    h = next;
    next = last;
#endif
  }

  for (int j = lid; j < HIDDEN; j += ITEMS) {
    PUT(final_h, place + j, h[j]);
#ifdef LSTM
    PUT(final_c, place + j, c[j]);
#endif
    for (long time = length; time < steps; time++) {
#ifdef BATCH_FIRST
      const long out = ((element * steps + time) * DIRECTIONS + direction) * HIDDEN;
#else
      const long out = ((time * DIRECTIONS + direction) * batch + element) * HIDDEN;
#endif
      PUT(y, out + j, 0.0f);
    }
  }
}
