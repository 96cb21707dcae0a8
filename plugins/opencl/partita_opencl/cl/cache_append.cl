// Stores keys, rotated by their positions, and values of new tokens at their places in the cache.
//
// Options: those of cache_tokens.cl; NO_PAST  places of tokens that are padding become zero
//   ITEMS  with CACHE_CODES: items that make a row; else each has an element

#include "cache_tokens.cl"

#ifdef CACHE_CODES
#define GROUPED __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#else
#define GROUPED
#endif

__kernel GROUPED void cache_append(
    __global const TOKEN* restrict k, __global const TOKEN* restrict v,
    __global CACHE* restrict keys, __global CACHE* restrict values,
    __global const LENGTH* restrict lengths, __global const LENGTH* restrict total,
    __global const TABLE* restrict cosines, __global const TABLE* restrict sines,
    volatile __global int* restrict fault,
    const int batch, const int heads, const int tokens, const int places, const int turns,
    const int2 step, const int2 start,  // of keys and values: from one token to the next, the first
    const int mark
) {
#ifdef CACHE_CODES
  __local uint made[PITCH / 4];
  __local float partial[ITEMS];
  const int tid = get_local_id(0);
  const size_t unit = get_group_id(0);
#else
  const int d = get_global_id(0) % SIZE;
  const size_t unit = get_global_id(0) / SIZE;
  if (unit >= (size_t)batch * tokens * heads) return;
#endif
  const int head = unit % heads, token = unit / heads % tokens, row = unit / heads / tokens;
  const int2 span =
      span_of(lengths[row], GET_TOTAL(total), row, tokens, places, turns, fault, mark);
  const int place = span.x + token;
  const size_t from = (size_t)row * tokens + token;
  k += from * step.x + start.x + head * SIZE;
  v += from * step.y + start.y + head * SIZE;
  const size_t to = (((size_t)row * heads + head) * places + place) * PITCH;
  keys += to;
  values += to;
#ifdef CACHE_CODES
  if (place < span.y) {
    encode(k, true, place, cosines, sines, made, partial, tid, ITEMS);
    put_row(keys, made, tid, ITEMS);
    barrier(CLK_LOCAL_MEM_FENCE);
    encode(v, false, place, cosines, sines, made, partial, tid, ITEMS);
    put_row(values, made, tid, ITEMS);
    barrier(CLK_LOCAL_MEM_FENCE);  // without it, PoCL may let all items store, or none
  }
#else
  if (place < span.y) {
    const float turned_key = turned(k, d, place, cosines, sines);
    PUT_CACHE(keys, d, turned_key);
    PUT_CACHE(values, d, GET_TOKEN(v, d));
  }
#ifdef NO_PAST
  else {
    PUT_CACHE(keys, d, 0.0f);
    PUT_CACHE(values, d, 0.0f);
  }
#endif
#endif
}
