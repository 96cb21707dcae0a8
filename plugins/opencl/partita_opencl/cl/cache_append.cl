// Keys, turned by their positions, and values of new tokens to their places in the cache.
//
// Options: those of cache_tokens.cl; NO_PAST  places of tokens that are padding become zero

#include "cache_tokens.cl"

__kernel void cache_append(
    __global const TOKEN* restrict k, __global const TOKEN* restrict v,
    __global CACHE* restrict keys, __global CACHE* restrict values,
    __global const LENGTH* restrict lengths, __global const LENGTH* restrict total,
    __global const TABLE* restrict cosines, __global const TABLE* restrict sines,
    volatile __global int* restrict fault,
    const int batch, const int heads, const int tokens, const int places, const int turns,
    const int2 step, const int2 start,  // of keys and values: from one token to the next, the first
    const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)batch * tokens * heads * SIZE) return;
  const int d = at % SIZE, head = at / SIZE % heads, token = at / SIZE / heads % tokens;
  const int row = at / SIZE / heads / tokens;
  const int2 span = span_of(lengths, total, row, tokens, places, turns, fault, mark);
  const int place = span.x + token;
  const size_t to = (((size_t)row * heads + head) * places + place) * SIZE + d;
  if (place < span.y) {
    const size_t from = (size_t)row * tokens + token;
    const float turned_key = turned(k + from * step.x + start.x + head * SIZE, d, place, cosines, sines);
    PUT_CACHE(keys, to, turned_key);
    PUT_CACHE(values, to, GET_TOKEN(v, from * step.y + start.y + head * SIZE + d));
  }
#ifdef NO_PAST
  else {
    PUT_CACHE(keys, to, 0.0f);
    PUT_CACHE(values, to, 0.0f);
  }
#endif
}
