// Attention of new tokens over a cache, as long as it is valid: softmax(scale * q k') v. Heads of
// queries that share a head of keys are rows of one work-group, which reads keys and values once for
// ROWS of them. LANES items share a key, each with WIDTH of its elements; each of KEYS sets of such
// items has sums of its own, scaled down when a new maximum comes (Dao et al., FlashAttention, 2022),
// and the sets' sums are joined at the end. Where there are few groups, the keys are cut in SPLITS.
//
// Options: those of cache_tokens.cl; LANES, WIDTH, KEYS, ROWS
//   HEADS    of keys; GROUP of them of queries share one
//   ONE_TOKEN  there is one of each row
//   AT_ONCE  keys of a set at a time
//   APPENDS  the new tokens, at most so many, are not in the cache yet: they are read from k and v,
//            and stored in the cache here
//   WINDOW   a token sees only so many keys, its own included; SOFTCAP  scores stay below it
//   SEES_ALL a token sees later ones too; BIASED  a number is added to each score
//   SPLITS   with several, sums go to `partial`, and maxima and weights behind them; the last group to
//            arrive combines them
//   NVIDIA   items of a set are neighbours in a warp, and add by instructions

#include "cache_tokens.cl"
#include "waiting.cl"

#define ITEMS (KEYS * LANES)
#if KEYS * LANES > 1
#define UNROLLED _Pragma("unroll")
#else  // a group of one item, as on processors, has loops over whole keys: PoCL takes 7 s to unroll
#define UNROLLED
#endif
#define NEVER (-FLT_MAX)
#define SCORES (ROWS * AT_ONCE)
#if defined(NVIDIA) && LANES <= 32 && (LANES & (LANES - 1)) == 0 && ITEMS % 32 == 0
#define IN_WARPS
#endif

// Adds up what the items of a set have; all of them get the sums.
void sum_over_set(float* scores, __local float* partial, const int tid) {
#ifdef IN_WARPS
  UNROLLED
  for (int i = 0; i < SCORES; i++) {
    UNROLLED
    for (int step = LANES / 2; step > 0; step /= 2) {
      float other;
      asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
          : "=f"(other) : "f"(scores[i]), "r"(step));
      scores[i] += other;
    }
  }
#else
  UNROLLED
  for (int i = 0; i < SCORES; i++) partial[i * ITEMS + tid] = scores[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLLED
  for (int i = 0; i < SCORES; i++) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += partial[i * ITEMS + tid / LANES * LANES + lane];
    scores[i] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
}

// The largest that a set of the warp has, or the sum of what all its sets have.
#if defined(IN_WARPS) && LANES >= 4
#define OVER_SETS(v, JOIN) \
  UNROLLED \
  for (int step = LANES; step < 32; step *= 2) { \
    float other; \
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" \
        : "=f"(other) : "f"(v), "r"(step)); \
    v = JOIN(v, other); \
  }
#define TEAMS (ITEMS / 32)  // of sets
#define TEAM_OF(tid) ((tid) / 32)
#define IS_FIRST_SET(tid) ((tid) % 32 < LANES)
#else
#define OVER_SETS(v, JOIN)
#define TEAMS KEYS
#define TEAM_OF(tid) ((tid) / LANES)
#define IS_FIRST_SET(tid) true
#endif
#define ADDED(a, b) ((a) + (b))

// An item's part of a key or a value: loads only, so that none is waited for here.
#if defined(NVIDIA) && defined(CACHE_HALF) && WIDTH == 8
typedef uint4 Elements;
#define FETCH(to, from) to = *(__global const uint4*)(from)
#define LEAVE_OUT(to) to = (uint4)(0);
#define NUMBERS_OF(to, elements) unpack8(to, elements)
#else
typedef struct { float v[WIDTH]; } Elements;
#define FETCH(to, from) fetch((to).v, from)
#define LEAVE_OUT(to) \
  { \
    UNROLLED \
    for (int i = 0; i < WIDTH; i++) (to).v[i] = 0.0f; \
  }
#define NUMBERS_OF(to, elements) \
  { \
    UNROLLED \
    for (int i = 0; i < WIDTH; i++) (to)[i] = (elements).v[i]; \
  }
void fetch(float* to, __global const CACHE* from) {
#if WIDTH % 8 == 0
  UNROLLED
  for (int i = 0; i < WIDTH; i += 8) GET_CACHE8(to + i, from, i);
#else
  for (int i = 0; i < WIDTH; i++) to[i] = GET_CACHE(from, i);
#endif
}
#endif

// Which key a set has: parts take blocks of KEYS in turn.
#define KEY_OF(block) (begin + ((block) * SPLITS + split) * KEYS + set)

// A key and its value; past the end, the last key is read again, and does not count.
#define FETCH_KEY(a, place, end) \
  { \
    const size_t at = (size_t)max(0, min(place, (end) - 1)) * PITCH; \
    FETCH(coming_keys[a], keys + at + d0); \
    FETCH(coming_values[a], values + at + d0); \
    key_scales[a] = SCALE_OF(keys + at); \
    value_scales[a] = SCALE_OF(values + at); \
  }

#define QUERY_LOADS ((ROWS * SIZE + ITEMS - 1) / ITEMS)
#define NEW_LOADS ((APPENDS * SIZE + ITEMS - 1) / ITEMS)
#if QUERY_LOADS <= 8  // there are registers enough for loads in flight
#define EARLY
#define UNROLL_IF_EARLY UNROLLED
#else
#define UNROLL_IF_EARLY
#endif
#define IN_LOCAL (LANES > 1 ? 2 * WIDTH : SCORES > WIDTH ? SCORES : WIDTH)  // numbers of an item
#define FITTING (ITEMS * IN_LOCAL / (TEAMS * SIZE))
#define BATCH (FITTING < ROWS ? FITTING : ROWS)  // rows whose sums are kept at a time

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void cache_attention(
    __global const TOKEN* restrict q, __global const TOKEN* restrict k,
    __global const TOKEN* restrict v, __global CACHE* keys, __global CACHE* values,
    __global const LENGTH* restrict lengths, __global const LENGTH* restrict total,
    __global const TABLE* restrict cosines, __global const TABLE* restrict sines,
    __global const BIAS* restrict bias, __global TOKEN* restrict y,
    __global float* restrict partial_sums,
    volatile __global int* restrict fault, __global int* counters,
    const int all_tokens, const int places, const int turns,
    const int4 step, const int4 start,  // of q, k, v: from one token to the next, the first element
    const int4 bias_step,  // of the bias: from one row, head and token to the next; keys it is for
    const float scale, const int mark
) {
  __local float queries[ROWS * SIZE];
  __local float scratch[ITEMS * IN_LOCAL];
  __local float maxima[TEAMS * ROWS], weights[TEAMS * ROWS];
  // A compile-time constant, since dividing by a variable is slow.
  const int heads = HEADS, group = GROUP;
#ifdef ONE_TOKEN
  const int tokens = 1;
#else
  const int tokens = all_tokens;
#endif
  const int tid = get_local_id(0), set = tid / LANES, d0 = tid % LANES * WIDTH;
  const int tiles = (tokens * group + ROWS - 1) / ROWS;
  const int split = get_group_id(0) % SPLITS, tile = get_group_id(0) / SPLITS % tiles;
  const int head = get_group_id(0) / SPLITS / tiles % heads;
  const int row = get_group_id(0) / SPLITS / tiles / heads;
  const int room = min(places, bias_step.w);
  const LENGTH length = lengths[row], most = GET_TOTAL(total);
  k += (size_t)row * tokens * step.y + start.y + head * SIZE;
  v += (size_t)row * tokens * step.z + start.z + head * SIZE;

  // Loads that do not depend on the lengths start before these arrive. Row r of the group is head
  // r % group of those that share the keys, of token r / group.
  const int first = tile * ROWS;
#ifdef EARLY
  float own[QUERY_LOADS], other[QUERY_LOADS];
  UNROLLED
  for (int j = 0; j < QUERY_LOADS; j++) {
    const int i = j * ITEMS + tid, r = first + i / SIZE, token = r / group, d = i % SIZE;
    own[j] = other[j] = 0.0f;
    if (i < ROWS * SIZE && token < tokens) {
      __global const TOKEN* from = q + ((size_t)row * tokens + token) * step.x + start.x +
                                   (head * group + r % group) * SIZE;
      own[j] = GET_TOKEN(from, d);
      other[j] = GET_TOKEN(from, partner_of(d));
    }
  }
#endif
#if defined(APPENDS) && !defined(CACHE_CODES)
  __local float new_keys[APPENDS * SIZE], new_values[APPENDS * SIZE];
#ifdef EARLY
  float own_key[NEW_LOADS], other_key[NEW_LOADS], new_value[NEW_LOADS];
  UNROLLED
  for (int j = 0; j < NEW_LOADS; j++) {
    const int i = j * ITEMS + tid, token = i / SIZE, d = i % SIZE;
    own_key[j] = other_key[j] = new_value[j] = 0.0f;
    if (token < min(tokens, APPENDS)) {
      own_key[j] = GET_TOKEN(k, (size_t)token * step.y + d);
      other_key[j] = GET_TOKEN(k, (size_t)token * step.y + partner_of(d));
      new_value[j] = GET_TOKEN(v, (size_t)token * step.z + d);
    }
  }
#endif
#endif
  const size_t cache = ((size_t)row * heads + head) * places * PITCH;
  keys += cache;
  values += cache;
  Elements coming_keys[AT_ONCE], coming_values[AT_ONCE];
  float key_scales[AT_ONCE], value_scales[AT_ONCE];
  int begin = 0;
#ifndef WINDOW
  FETCH_KEY(0, KEY_OF(0), places)  // while the lengths are being loaded
#endif
  const int2 span = span_of(length, most, row, tokens, room, turns, fault, mark);
  const int before = span.x, valid = min(tokens, span.y - span.x);

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
#endif

#ifdef SEES_ALL
  const int end = span.y;
#else
  const int end = max(0, min(span.y, before + min((first + ROWS - 1) / group, tokens - 1) + 1));
#endif
#ifdef WINDOW
  begin = max(0, min(end, before + first / group - WINDOW + 1));
  FETCH_KEY(0, KEY_OF(0), end)
#else
  if (KEY_OF(0) >= end) {  // the memory there may hold NaN
    LEAVE_OUT(coming_keys[0])
    LEAVE_OUT(coming_values[0])
    key_scales[0] = value_scales[0] = 0.0f;
  }
#endif
  UNROLLED
  for (int a = 1; a < AT_ONCE; a++) FETCH_KEY(a, KEY_OF(a), end)
#ifdef EARLY
#define OWN(head, j, d) own[j]
#define OTHER(head, j, d) other[j]
#define OWN_KEY(j, d) own_key[j]
#define OTHER_KEY(j, d) other_key[j]
#define NEW_VALUE(j, d) new_value[j]
#else
#define OWN(head, j, d) GET_TOKEN(head, d)
#define OTHER(head, j, d) GET_TOKEN(head, partner_of(d))
#define OWN_KEY(j, d) GET_TOKEN(k, (size_t)token * step.y + (d))
#define OTHER_KEY(j, d) GET_TOKEN(k, (size_t)token * step.y + partner_of(d))
#define NEW_VALUE(j, d) GET_TOKEN(v, (size_t)token * step.z + (d))
#endif
  UNROLL_IF_EARLY
  for (int j = 0; j < QUERY_LOADS; j++) {
    const int i = j * ITEMS + tid, r = first + i / SIZE, token = r / group, d = i % SIZE;
    if (i >= ROWS * SIZE) break;
    __global const TOKEN* from = q + ((size_t)row * tokens + token) * step.x + start.x +
                                 (head * group + r % group) * SIZE;
    queries[i] = token >= valid ? 0.0f : scale * turned_pair(
        OWN(from, j, d), OTHER(from, j, d), d, before + token, cosines, sines);
  }
#if defined(APPENDS) && !defined(CACHE_CODES)
  UNROLL_IF_EARLY
  for (int j = 0; j < NEW_LOADS; j++) {
    const int i = j * ITEMS + tid, token = i / SIZE, d = i % SIZE;
    if (token >= valid) break;
    const float key = turned_pair(
        OWN_KEY(j, d), OTHER_KEY(j, d), d, before + token, cosines, sines);
    const float value = NEW_VALUE(j, d);
    new_keys[i] = key;
    new_values[i] = value;
    if (token % (tiles * SPLITS) == tile * SPLITS + split) {
      PUT_CACHE(keys, (size_t)(before + token) * SIZE + d, key);
      PUT_CACHE(values, (size_t)(before + token) * SIZE + d, value);
    }
  }
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  float query[ROWS][WIDTH];
  UNROLLED
  for (int r = 0; r < ROWS; r++)
    UNROLLED
    for (int i = 0; i < WIDTH; i++) query[r][i] = queries[r * SIZE + d0 + i];

  float top[ROWS], weight[ROWS], sums[ROWS][WIDTH];
  UNROLLED
  for (int r = 0; r < ROWS; r++) {
    top[r] = NEVER;
    weight[r] = 0.0f;
    UNROLLED
    for (int i = 0; i < WIDTH; i++) sums[r][i] = 0.0f;
  }
  for (int block = 0; KEY_OF(block) - set < end; block += AT_ONCE) {
    float scores[SCORES], value[AT_ONCE][WIDTH], value_scale[AT_ONCE];
    UNROLLED
    for (int a = 0; a < AT_ONCE; a++) {
      float key[WIDTH], key_scale = key_scales[a];
      NUMBERS_OF(key, coming_keys[a]);
      NUMBERS_OF(value[a], coming_values[a]);
      value_scale[a] = value_scales[a];
#ifdef APPENDS
      const int place = min(KEY_OF(block + a), end - 1);
      if (place >= before) {
#ifdef CACHE_CODES
        __local const uint* key_row = new_rows[2 * (place - before)];
        __local const uint* value_row = new_rows[2 * (place - before) + 1];
        for (int i = 0; i < WIDTH; i++) {
          key[i] = ((__local const char*)key_row)[d0 + i];
          value[a][i] = ((__local const char*)value_row)[d0 + i];
        }
        key_scale = as_float(key_row[CODES / 4]);
        value_scale[a] = as_float(value_row[CODES / 4]);
#else
        UNROLLED
        for (int i = 0; i < WIDTH; i++) {
          key[i] = new_keys[(place - before) * SIZE + d0 + i];
          value[a][i] = new_values[(place - before) * SIZE + d0 + i];
        }
#endif
      }
#endif
      UNROLLED
      for (int r = 0; r < ROWS; r++) {
        float dot = 0.0f;
        UNROLLED
        for (int i = 0; i < WIDTH; i++) dot = fma(key[i], query[r][i], dot);
        scores[r * AT_ONCE + a] = dot * key_scale;
      }
    }
    if (KEY_OF(block + AT_ONCE) - set < end)
      UNROLLED
      for (int a = 0; a < AT_ONCE; a++) FETCH_KEY(a, KEY_OF(block + AT_ONCE + a), end)
    sum_over_set(scores, scratch, tid);
    UNROLLED
    for (int r = 0; r < ROWS; r++) {
      const int here = before + (first + r) / group;
#ifdef BIASED
      const size_t bias_row =
          (size_t)row * bias_step.x + (size_t)(head * group + (first + r) % group) * bias_step.y +
          (size_t)min((first + r) / group, tokens - 1) * bias_step.z;
#endif
      bool sees[AT_ONCE];
      float highest = top[r];
      UNROLLED
      for (int a = 0; a < AT_ONCE; a++) {
        const int place = KEY_OF(block + a);
        sees[a] = place < end;
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
      UNROLLED
      for (int i = 0; i < WIDTH; i++) sums[r][i] *= less;
      UNROLLED
      for (int a = 0; a < AT_ONCE; a++) {
        const float power = sees[a] ? exp(scores[r * AT_ONCE + a] - highest) : 0.0f;
        const float part = power * value_scale[a];
        weight[r] += power;
        UNROLLED
        for (int i = 0; i < WIDTH; i++) sums[r][i] = fma(part, value[a][i], sums[r][i]);
      }
    }
  }

  float highest[ROWS];
  UNROLLED
  for (int r = 0; r < ROWS; r++) {
    highest[r] = top[r];  // the same from all items of a set
    OVER_SETS(highest[r], fmax)
    maxima[TEAM_OF(tid) * ROWS + r] = highest[r];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLLED
  for (int r = 0; r < ROWS; r++) {
    for (int s = 0; s < TEAMS; s++) highest[r] = fmax(highest[r], maxima[s * ROWS + r]);
    const float less = exp(top[r] - highest[r]);
    UNROLLED
    for (int i = 0; i < WIDTH; i++) {
      sums[r][i] *= less;
      OVER_SETS(sums[r][i], ADDED)
    }
    weight[r] *= less;
    OVER_SETS(weight[r], ADDED)
    weights[TEAM_OF(tid) * ROWS + r] = weight[r];
  }
  UNROLLED
  for (int from = 0; from < ROWS; from += BATCH) {
    UNROLLED
    for (int r = from; r < min(from + BATCH, ROWS); r++)
      UNROLLED
      for (int i = 0; i < WIDTH; i++)
        if (IS_FIRST_SET(tid)) scratch[(TEAM_OF(tid) * BATCH + r - from) * SIZE + d0 + i] = sums[r][i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = tid; i < min(BATCH, ROWS - from) * SIZE; i += ITEMS) {
      const int of_group = from + i / SIZE, r = first + of_group, token = r / group, d = i % SIZE;
      if (token >= tokens) break;
      const size_t result = ((size_t)row * tokens + token) * heads * group + head * group + r % group;
      float whole = 0.0f, sum = 0.0f;
      UNROLLED
      for (int s = 0; s < TEAMS; s++) whole += weights[s * ROWS + of_group];
      UNROLLED
      for (int s = 0; s < TEAMS; s++) sum += scratch[s * BATCH * SIZE + i];
#if SPLITS == 1
      PUT_TOKEN(y, result * SIZE + d, whole == 0.0f || token >= valid ? 0.0f : sum / whole);
#else
      __global float* part = partial_sums + (result * SPLITS + split) * (SIZE + 2);
      part[d] = sum;
      if (d == 0) {
        float most = NEVER;
        for (int s = 0; s < TEAMS; s++) most = fmax(most, maxima[s * ROWS + of_group]);
        part[SIZE] = most;
        part[SIZE + 1] = token < valid ? whole : 0.0f;
      }
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#if SPLITS > 1
  __local int is_last;
  ORDER();
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (tid == 0) {
    __global int* counter = counters + get_group_id(0) / SPLITS;
    int before_us;
    COUNT(before_us, counter)
    is_last = before_us == SPLITS - 1;
    if (is_last) *counter = 0;  // for the next launch
  }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  ORDER();
  for (int i = tid; i < ROWS * SIZE && is_last; i += ITEMS) {
    const int r = first + i / SIZE, token = r / group, d = i % SIZE;
    if (token >= tokens) break;
    const size_t result = (((size_t)row * tokens + token) * heads + head) * group + r % group;
    __global const float* parts = partial_sums + result * SPLITS * (SIZE + 2);
    float tops[SPLITS], counts[SPLITS], of_part[SPLITS];  // all loaded at once
    UNROLLED
    for (int s = 0; s < SPLITS; s++) {
      tops[s] = parts[s * (SIZE + 2) + SIZE];
      counts[s] = parts[s * (SIZE + 2) + SIZE + 1];
      of_part[s] = parts[s * (SIZE + 2) + d];
    }
    float most = NEVER, whole = 0.0f, sum = 0.0f;
    UNROLLED
    for (int s = 0; s < SPLITS; s++) most = fmax(most, tops[s]);
    UNROLLED
    for (int s = 0; s < SPLITS; s++) {
      const float less = exp(tops[s] - most);
      whole = fma(less, counts[s], whole);
      sum = fma(less, of_part[s], sum);
    }
    PUT_TOKEN(y, result * SIZE + d, whole == 0.0f ? 0.0f : sum / whole);
  }
#endif
}
