// Attention of new tokens over a cache, as long as it is valid: softmax(scale * q k') v. Heads of
// queries that share a head of keys are rows of one work-group, which reads keys and values once for
// ROWS of them. LANES items share a key, each with WIDTH of its elements; each of KEYS sets of such
// items has sums of its own, scaled down when a new maximum comes (Dao et al., FlashAttention, 2022),
// and the sets' sums are joined at the end. Where there are few groups, the keys are cut in SPLITS.
//
// Options: those of cache_tokens.cl; LANES, WIDTH, KEYS, ROWS
//   AT_ONCE  keys of a set at a time
//   APPENDS  the tokens, at most so many, are not in the cache yet: they are taken from k and v, and
//            come into it here
//   WINDOW   a token sees only so many keys, its own included; SOFTCAP  scores stay below it
//   SEES_ALL a token sees later ones too; BIASED  a number is added to each score, BIAS_HALF  a half
//   SPLITS   with several, sums go to `partial`, and maxima and weights behind them; the last group to
//            come joins those of all
//   NVIDIA   items of a set are neighbours in a warp, and add by instructions

#include "cache_tokens.cl"

#define ITEMS (KEYS * LANES)
#define NEVER (-1e30f)
#define SCORES (ROWS * AT_ONCE)
#ifdef BIAS_HALF
#define BIAS half
#define GET_BIAS(p, i) GET_HALF(p, i)
#else
#define BIAS float
#define GET_BIAS(p, i) (p)[i]
#endif
#if defined(NVIDIA) && LANES <= 32 && (LANES & (LANES - 1)) == 0 && ITEMS % 32 == 0
#define IN_WARPS
#endif

// Adds up what the items of a set have; all of them get the sums.
void sum_over_set(float* scores, __local float* partial, const int tid) {
#ifdef IN_WARPS
  #pragma unroll
  for (int i = 0; i < SCORES; i++) {
    #pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
      float other;
      asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
          : "=f"(other) : "f"(scores[i]), "r"(step));
      scores[i] += other;
    }
  }
#else
  #pragma unroll
  for (int i = 0; i < SCORES; i++) partial[i * ITEMS + tid] = scores[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  #pragma unroll
  for (int i = 0; i < SCORES; i++) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += partial[i * ITEMS + tid / LANES * LANES + lane];
    scores[i] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

void fetch(float* to, __global const CACHE* from) {
#if WIDTH % 8 == 0
  #pragma unroll
  for (int i = 0; i < WIDTH; i += 8) GET_CACHE8(to + i, from, i);
#else
  for (int i = 0; i < WIDTH; i++) to[i] = GET_CACHE(from, i);
#endif
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void cache_attention(
    __global const TOKEN* restrict q, __global const TOKEN* restrict k,
    __global const TOKEN* restrict v, __global CACHE* keys, __global CACHE* values,
    __global const LENGTH* restrict lengths, __global const LENGTH* restrict total,
    __global const TABLE* restrict cosines, __global const TABLE* restrict sines,
    __global const BIAS* restrict bias, __global TOKEN* restrict y,
    __global float* restrict partial_sums,
    volatile __global int* restrict fault, __global int* counters,
    const int heads, const int group, const int tokens, const int places,
    const int turns,
    const int4 step, const int4 start,  // of q, k, v: from one token to the next, the first element
    const int4 bias_step,  // of the bias: from one row, head and token to the next; keys it is for
    const float scale, const int mark
) {
  __local float queries[ROWS * SIZE];
  __local float scratch[ITEMS * (SCORES > WIDTH ? SCORES : WIDTH)];
  __local float maxima[KEYS * ROWS], weights[KEYS * ROWS];
  const int tid = get_local_id(0), set = tid / LANES, d0 = tid % LANES * WIDTH;
  const int tiles = (tokens * group + ROWS - 1) / ROWS;
  const int split = get_group_id(0) % SPLITS, tile = get_group_id(0) / SPLITS % tiles;
  const int head = get_group_id(0) / SPLITS / tiles % heads;
  const int row = get_group_id(0) / SPLITS / tiles / heads;
  const int room = min(places, bias_step.w);
  const int2 span = span_of(lengths, total, row, tokens, room, turns, fault, mark);
  const int before = span.x, valid = min(tokens, span.y - span.x);
  const size_t cache = ((size_t)row * heads + head) * places * PITCH;
  keys += cache;
  values += cache;
  k += (size_t)row * tokens * step.y + start.y + head * SIZE;
  v += (size_t)row * tokens * step.z + start.z + head * SIZE;

#if defined(APPENDS) && defined(CACHE_CODES)
  __local uint new_rows[2 * APPENDS][PITCH / 4];  // keys and values of a token are neighbours
  for (int token = 0; token < valid; token++) {
    const int at = before + token;
    encode(k + (size_t)token * step.y, true, at, cosines, sines, new_rows[2 * token], scratch, tid,
        ITEMS);
    encode(v + (size_t)token * step.z, false, at, cosines, sines, new_rows[2 * token + 1], scratch,
        tid, ITEMS);
    if (token % (tiles * SPLITS) != tile * SPLITS + split) continue;
    put_row(keys + (size_t)at * PITCH, new_rows[2 * token], tid, ITEMS);
    put_row(values + (size_t)at * PITCH, new_rows[2 * token + 1], tid, ITEMS);
  }
#elif defined(APPENDS)
  for (int token = tile * SPLITS + split; token < valid; token += tiles * SPLITS)
    for (int base = 0; base < SIZE; base += ITEMS) {  // as in put_row
      const int d = base + tid;
      if (d < SIZE) {
        const size_t to = (size_t)(before + token) * SIZE + d;
        const float turned_key = turned(k + (size_t)token * step.y, d, before + token, cosines, sines);
        PUT_CACHE(keys, to, turned_key);
        PUT_CACHE(values, to, GET_TOKEN(v, (size_t)token * step.z + d));
      }
    }
#endif

  // Row r of the group is head r % group of those that share the keys, of token r / group.
  const int first = tile * ROWS;
  int begin = 0;
#ifdef SEES_ALL
  const int end = span.y;
#else
  const int end = max(0, min(span.y, before + min((first + ROWS - 1) / group, tokens - 1) + 1));
#endif
#ifdef WINDOW
  begin = max(0, min(end, before + first / group - WINDOW + 1));
#endif
  const int share = ((end - begin + SPLITS - 1) / SPLITS + KEYS - 1) / KEYS * KEYS;
  begin = min(end, begin + split * share);
  const int stop = min(end, begin + share);
#ifdef NVIDIA
  // The first keys and values come nearer while queries are turned.
  #pragma unroll
  for (int a = 0; a < AT_ONCE; a++) {
    const size_t at = (size_t)max(0, min(begin + a * KEYS + set, stop - 1)) * PITCH + d0;
    asm volatile("prefetch.global.L2 [%0];" :: "l"((size_t)(keys + at)));
    asm volatile("prefetch.global.L2 [%0];" :: "l"((size_t)(values + at)));
  }
#endif
  for (int i = tid; i < ROWS * SIZE; i += ITEMS) {
    const int r = first + i / SIZE, token = r / group;
    const size_t from = ((size_t)row * tokens + token) * step.x + start.x;
    queries[i] = token >= valid ? 0.0f : scale * turned(
        q + from + (head * group + r % group) * SIZE, i % SIZE, before + token, cosines, sines);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float query[ROWS][WIDTH];
  #pragma unroll
  for (int r = 0; r < ROWS; r++)
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) query[r][i] = queries[r * SIZE + d0 + i];

  float top[ROWS], weight[ROWS], sums[ROWS][WIDTH];
  #pragma unroll
  for (int r = 0; r < ROWS; r++) {
    top[r] = NEVER;
    weight[r] = 0.0f;
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) sums[r][i] = 0.0f;
  }
  for (int base = begin; base < stop; base += KEYS * AT_ONCE) {
    float scores[SCORES], value[AT_ONCE][WIDTH], value_scale[AT_ONCE];
    #pragma unroll
    for (int a = 0; a < AT_ONCE; a++) {
      // Past the end, the last key is read again, and does not count.
      const int place = min(base + a * KEYS + set, stop - 1);
      float key[WIDTH], key_scale = 1.0f;
      value_scale[a] = 1.0f;
#if defined(APPENDS) && defined(CACHE_CODES)
      if (place >= before) {
        __local const uint* key_row = new_rows[2 * (place - before)];
        __local const uint* value_row = new_rows[2 * (place - before) + 1];
        for (int i = 0; i < WIDTH; i++) {
          key[i] = ((__local const char*)key_row)[d0 + i];
          value[a][i] = ((__local const char*)value_row)[d0 + i];
        }
        key_scale = as_float(key_row[CODES / 4]);
        value_scale[a] = as_float(value_row[CODES / 4]);
      } else
#elif defined(APPENDS)
      if (place >= before) {
        for (int i = 0; i < WIDTH; i++) {
          key[i] = turned(k + (size_t)(place - before) * step.y, d0 + i, place, cosines, sines);
          value[a][i] = GET_TOKEN(v, (size_t)(place - before) * step.z + d0 + i);
        }
      } else
#endif
      {
        __global const CACHE* key_row = keys + (size_t)place * PITCH;
        __global const CACHE* value_row = values + (size_t)place * PITCH;
        fetch(key, key_row + d0);
        fetch(value[a], value_row + d0);
        key_scale = SCALE_OF(key_row);
        value_scale[a] = SCALE_OF(value_row);
      }
      #pragma unroll
      for (int r = 0; r < ROWS; r++) {
        float dot = 0.0f;
        #pragma unroll
        for (int i = 0; i < WIDTH; i++) dot = fma(key[i], query[r][i], dot);
        scores[r * AT_ONCE + a] = dot * key_scale;
      }
    }
    sum_over_set(scores, scratch, tid);
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int here = before + (first + r) / group;
#ifdef BIASED
      const size_t bias_row =
          (size_t)row * bias_step.x + (size_t)(head * group + (first + r) % group) * bias_step.y +
          (size_t)min((first + r) / group, tokens - 1) * bias_step.z;
#endif
      bool sees[AT_ONCE];
      float highest = top[r];
      #pragma unroll
      for (int a = 0; a < AT_ONCE; a++) {
        const int place = base + a * KEYS + set;
        sees[a] = place < stop;
#ifndef SEES_ALL
        sees[a] = sees[a] && place <= here;
#endif
#ifdef WINDOW
        sees[a] = sees[a] && place > here - WINDOW;
#endif
        float* score = &scores[r * AT_ONCE + a];
#ifdef SOFTCAP
        *score = SOFTCAP * tanh_of(*score / SOFTCAP);
#endif
#ifdef BIASED
        if (sees[a]) *score += GET_BIAS(bias, bias_row + place);
#endif
        if (sees[a]) highest = fmax(highest, *score);
      }
      const float less = exp(top[r] - highest);
      top[r] = highest;
      weight[r] *= less;
      #pragma unroll
      for (int i = 0; i < WIDTH; i++) sums[r][i] *= less;
      #pragma unroll
      for (int a = 0; a < AT_ONCE; a++) {
        const float power = sees[a] ? exp(scores[r * AT_ONCE + a] - highest) : 0.0f;
        const float part = power * value_scale[a];
        weight[r] += power;
        #pragma unroll
        for (int i = 0; i < WIDTH; i++) sums[r][i] = fma(part, value[a][i], sums[r][i]);
      }
    }
  }

  #pragma unroll
  for (int r = 0; r < ROWS; r++) maxima[set * ROWS + r] = top[r];  // the same from all items of a set
  barrier(CLK_LOCAL_MEM_FENCE);
  float highest[ROWS];
  #pragma unroll
  for (int r = 0; r < ROWS; r++) {
    highest[r] = NEVER;
    for (int s = 0; s < KEYS; s++) highest[r] = fmax(highest[r], maxima[s * ROWS + r]);
    const float less = exp(top[r] - highest[r]);
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) sums[r][i] *= less;
    weights[set * ROWS + r] = weight[r] * less;
  }
  #pragma unroll
  for (int r = 0; r < ROWS; r++) {
    #pragma unroll
    for (int i = 0; i < WIDTH; i++) scratch[set * SIZE + d0 + i] = sums[r][i];
    barrier(CLK_LOCAL_MEM_FENCE);
    float whole = 0.0f;
    for (int s = 0; s < KEYS; s++) whole += weights[s * ROWS + r];
    const int token = (first + r) / group;
    const size_t result = ((size_t)row * tokens + token) * heads * group + head * group +
                          (first + r) % group;
    for (int d = tid; d < SIZE && token < tokens; d += ITEMS) {
      float sum = 0.0f;
      for (int s = 0; s < KEYS; s++) sum += scratch[s * SIZE + d];
#if SPLITS == 1
      PUT_TOKEN(y, result * SIZE + d, whole == 0.0f || token >= valid ? 0.0f : sum / whole);
#else
      partial_sums[(result * SPLITS + split) * (SIZE + 2) + d] = sum;
      if (d == 0) {
        partial_sums[(result * SPLITS + split) * (SIZE + 2) + SIZE] = highest[r];
        partial_sums[(result * SPLITS + split) * (SIZE + 2) + SIZE + 1] = token < valid ? whole : 0.0f;
      }
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#if SPLITS > 1
  __local int is_last;
  DEVICE_FENCE();
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (tid == 0) {
    __global int* counter = counters + get_group_id(0) / SPLITS;
    is_last = atomic_inc(counter) == SPLITS - 1;
    if (is_last) atomic_xchg(counter, 0);  // for the next launch
  }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  DEVICE_FENCE();
  // What the sums of each part count, of each row.
  __local float tops[ROWS * SPLITS], counts[ROWS * SPLITS];
  for (int i = tid; i < ROWS * SPLITS && is_last; i += ITEMS) {
    const int r = first + i / SPLITS, token = min(r / group, tokens - 1);
    const size_t result = (((size_t)row * tokens + token) * heads + head) * group + r % group;
    tops[i] = partial_sums[(result * SPLITS + i % SPLITS) * (SIZE + 2) + SIZE];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < ROWS * SPLITS && is_last; i += ITEMS) {
    float highest = NEVER;
    for (int s = 0; s < SPLITS; s++) highest = fmax(highest, tops[i / SPLITS * SPLITS + s]);
    counts[i] = exp(tops[i] - highest);
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = tid; i < ROWS * SIZE && is_last; i += ITEMS) {
    const int r = first + i / SIZE, token = r / group, d = i % SIZE;
    if (token >= tokens) break;
    const size_t result = (((size_t)row * tokens + token) * heads + head) * group + r % group;
    __global const float* of_row = partial_sums + result * SPLITS * (SIZE + 2);
    float whole = 0.0f, sum = 0.0f;
    #pragma unroll
    for (int s = 0; s < SPLITS; s++) {
      const float less = counts[i / SIZE * SPLITS + s];
      whole = fma(less, of_row[s * (SIZE + 2) + SIZE + 1], whole);
      sum = fma(less, of_row[s * (SIZE + 2) + d], sum);
    }
    PUT_TOKEN(y, result * SIZE + d, whole == 0.0f ? 0.0f : sum / whole);
  }
#endif
}
