// New tokens of a decoder and the cache of keys and values that they join, whose valid length is
// read from a tensor. Queries, keys and values lie in (batch, token, head, element), the cache in
// (batch, head, place, element).
//
// Options: SIZE  elements of a head, CACHE_HALF, TOKEN_HALF, TABLE_HALF  halves, else float32
//   TOLD_BY_LENGTHS  lengths alone say how many keys there are, brought to what can be
//   ROTATED  elements of a head that are turned, 0 for none; INTERLEAVED  pairs are neighbours, else
//            they are half of ROTATED apart

#ifdef TOKEN_HALF
#define TOKEN half
#define GET_TOKEN(p, i) GET_HALF(p, i)
#define PUT_TOKEN(p, i, v) PUT_HALF(p, i, v)
#else
#define TOKEN float
#define GET_TOKEN(p, i) (p)[i]
#define PUT_TOKEN(p, i, v) (p)[i] = (v)
#endif
#ifdef CACHE_HALF
#define CACHE half
#define GET_CACHE(p, i) GET_HALF(p, i)
#define PUT_CACHE(p, i, v) PUT_HALF(p, i, v)
#define GET_CACHE8(v, p, i) GET_HALF8(v, p, i)
#else
#define CACHE float
#define GET_CACHE(p, i) (p)[i]
#define PUT_CACHE(p, i, v) (p)[i] = (v)
#define GET_CACHE8(v, p, i) vstore8(vload8(0, (p) + (i)), 0, v)
#endif
#ifdef TABLE_HALF
#define TABLE half
#define GET_TABLE(p, i) GET_HALF(p, i)
#else
#define TABLE float
#define GET_TABLE(p, i) (p)[i]
#endif

// Keys of a row before this run (x) and after it (y); none, and a mark in `fault`, if lengths do not
// fit the cache, the tokens or the tables.
#ifdef TOLD_BY_LENGTHS
#define LENGTH long
#else
#define LENGTH int
#endif
int2 span_of(
    __global const LENGTH* lengths, __global const LENGTH* total, const int row, const int tokens,
    const int places, const int turns, volatile __global int* fault, const int mark
) {
#ifdef TOLD_BY_LENGTHS
  const int keys = (int)clamp(lengths[row], (long)0, (long)places);
  return (int2)(keys - tokens, keys);
#else
  const int most = total[0], length = lengths[row];
  const bool first = most == tokens;
  const bool fits = most >= tokens && most <= places && length >= 0 && length < most &&
                    (first || length >= tokens - 1);
  const int after = fits ? length + 1 : 0;
  const int before = first || !fits ? 0 : after - tokens;
#if ROTATED > 0
  if (fits && min(before + tokens, after) <= turns) return (int2)(before, after);
#else
  if (fits) return (int2)(before, after);
#endif
  atomic_cmpxchg(fault, 0, mark);
  return (int2)(0, 0);
#endif
}

// Element d of a head, turned by the angle of its token's position.
float turned(
    __global const TOKEN* head, const int d, const int position, __global const TABLE* cosines,
    __global const TABLE* sines
) {
  const float own = GET_TOKEN(head, d);
#if ROTATED > 0
  if (d < ROTATED) {
#ifdef INTERLEAVED
    const int angle = d / 2;
    const bool is_first = d % 2 == 0;
    const float other = GET_TOKEN(head, is_first ? d + 1 : d - 1);
#else
    const bool is_first = d < ROTATED / 2;
    const int angle = is_first ? d : d - ROTATED / 2;
    const float other = GET_TOKEN(head, is_first ? d + ROTATED / 2 : angle);
#endif
    const size_t at = (size_t)position * (ROTATED / 2) + angle;
    const float c = GET_TABLE(cosines, at), s = GET_TABLE(sines, at);
    return is_first ? own * c - other * s : own * c + other * s;
  }
#endif
  return own;
}
