// Rotary embedding: heads rotated by the angles of their tokens' positions. An element's head is
// `at / SIZE`; heads are stored in (batch, token, head) or, with HEADS_FIRST, in (batch, head, token).
//
// Options: those of cache_tokens.cl; HEADS_FIRST
//   IDS  1  a position for all rows' first tokens, 2  for each token; 0: tables have a row for each

#include "cache_tokens.cl"

__kernel void rotary(
    __global const TOKEN* restrict x, __global const long* restrict ids,
    __global const TABLE* restrict cosines, __global const TABLE* restrict sines,
    __global TOKEN* restrict y, volatile __global int* restrict fault, const long count,
    const int heads, const int tokens, const int turns, const int mark
) {
  const size_t at = get_global_id(0);
  if (at >= (size_t)count) return;
  const size_t head = at / SIZE;
#ifdef HEADS_FIRST
  const int token = head % tokens;
#else
  const int token = head / heads % tokens;
#endif
  const size_t row = head / heads / tokens;
#if IDS == 1
  const long position = ids[0] + token;
#elif IDS == 2
  const long position = ids[row * tokens + token];
#else
  const long position = row * tokens + token;
#endif
  if (position < 0 || position >= turns) {
    atomic_cmpxchg(fault, 0, mark);
    PUT_TOKEN(y, at, 0.0f);
  } else {
    PUT_TOKEN(y, at, turned(x + head * SIZE, at % SIZE, (int)position, cosines, sines));
  }
}
