// New tokens of a decoder and the cache of keys and values that they join, whose valid length is
// read from a tensor. Queries, keys and values lie in (batch, token, head, element), the cache in
// (batch, head, place, element), PITCH elements from one place to the next.
//
// Options: SIZE  elements of a head; CACHE_HALF, TOKEN_HALF, TABLE_HALF, BIAS_HALF  halves, else float32
//   CACHE_CODES  the cache holds bytes, and behind those of a row the float32 that an element is a
//            byte's times: rows of partita.tensors.cache_rows
//   TOLD_BY_LENGTHS  the number of keys comes from the lengths alone, clamped to the valid range
//   ROTATED  elements of a head that are rotated, 0 for none; INTERLEAVED  pairs are neighbours,
//            else they are half of ROTATED apart

#ifdef TOKEN_HALF
#define TOKEN half
#define GET_TOKEN(p, i) GET_HALF(p, i)
#define PUT_TOKEN(p, i, v) PUT_HALF(p, i, v)
#else
#define TOKEN float
#define GET_TOKEN(p, i) (p)[i]
#define PUT_TOKEN(p, i, v) (p)[i] = (v)
#endif
#ifdef CACHE_CODES
#define CACHE char
#define CODES ((SIZE + 3) / 4 * 4)
#define PITCH (CODES + 4)
#define GET_CACHE(p, i) (float)(p)[i]
#define GET_CACHE8(v, p, i) \
    vstore8(convert_float8(as_char8(vload2(0, (__global const uint*)((p) + (i))))), 0, v)
#define SCALE_OF(row) (*(__global const float*)((row) + CODES))
#elif defined(CACHE_HALF)
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
#ifndef CACHE_CODES
#define PITCH SIZE
#define SCALE_OF(row) 1.0f
#endif
#ifdef BIAS_HALF
#define BIAS half
#define GET_BIAS(p, i) GET_HALF(p, i)
#else
#define BIAS float
#define GET_BIAS(p, i) (p)[i]
#endif
#ifdef TABLE_HALF
#define TABLE half
#define GET_TABLE(p, i) GET_HALF(p, i)
#else
#define TABLE float
#define GET_TABLE(p, i) (p)[i]
#endif

// Records a fault: the operation's number, then a CacheFault. Later ones are not recorded.
void note_fault(
    volatile __global int* fault, const int mark, const int kind, const int row, const int found,
    const int least, const int most
) {
  if (atomic_cmpxchg(fault, 0, mark) != 0) return;
  fault[2] = kind;
  fault[3] = row;
  fault[4] = found;
  fault[5] = least;
  fault[6] = most;
}

#ifdef TOLD_BY_LENGTHS
#define LENGTH long
#define GET_TOTAL(total) 0
#else
#define LENGTH int
#define GET_TOTAL(total) *(total)
#endif

// Keys of a row before this run (x) and after it (y), by its length and the total; none, and a note in
// `fault`, if these do not fit the cache, the tokens or the tables.
int2 span_of(
    const LENGTH length, const LENGTH most, const int row, const int tokens, const int places,
    const int turns, volatile __global int* fault, const int mark
) {
#ifdef TOLD_BY_LENGTHS
  const int keys = (int)clamp(length, (long)0, (long)places);
  return (int2)(keys - tokens, keys);
#else
  const bool first = most == tokens;
  const int least = first ? 0 : tokens - 1;
  if (most < tokens || most > places) {
    note_fault(fault, mark, 1, 0, most, tokens, places);
  } else if (length < least || length >= most) {
    note_fault(fault, mark, 2, row, length, least, most - 1);
  } else {
    const int after = length + 1, before = first ? 0 : after - tokens;
#if ROTATED > 0
    if (min(before + tokens, after) > turns)
      note_fault(fault, mark, 3, row, max(before, turns), 0, turns - 1);
    else
#endif
      return (int2)(before, after);
  }
  return (int2)(0, 0);
#endif
}

// The element that makes a pair with element d of a head, or d itself.
int partner_of(const int d) {
#ifdef INTERLEAVED
  return d < ROTATED ? d ^ 1 : d;
#else
  return d >= ROTATED ? d : d < ROTATED / 2 ? d + ROTATED / 2 : d - ROTATED / 2;
#endif
}

// Element d of a head, rotated with its partner by the angle of its token's position.
float turned_pair(
    const float own, const float other, const int d, const int position,
    __global const TABLE* cosines, __global const TABLE* sines
) {
#if ROTATED > 0
  if (d < ROTATED) {
#ifdef INTERLEAVED
    const int angle = d / 2;
    const bool is_first = d % 2 == 0;
#else
    const bool is_first = d < ROTATED / 2;
    const int angle = is_first ? d : d - ROTATED / 2;
#endif
    const size_t at = (size_t)position * (ROTATED / 2) + angle;
    const float c = GET_TABLE(cosines, at), s = GET_TABLE(sines, at);
    return is_first ? own * c - other * s : own * c + other * s;
  }
#endif
  return own;
}

float turned(
    __global const TOKEN* head, const int d, const int position, __global const TABLE* cosines,
    __global const TABLE* sines
) {
  const float own = GET_TOKEN(head, d), other = GET_TOKEN(head, partner_of(d));
  return turned_pair(own, other, d, position, cosines, sines);
}

#ifdef CACHE_CODES
// Element d of a row to be stored: of a key, which is rotated, or of a value.
float joining(
    __global const TOKEN* head, const bool is_key, const int d, const int position,
    __global const TABLE* cosines, __global const TABLE* sines
) {
  return is_key ? turned(head, d, position, cosines, sines) : GET_TOKEN(head, d);
}

// The larger of a number and the size of another one; NaN once one of them is.
float larger(const float most, const float x) {
  const float size = fabs(x);
  return size <= most || isnan(most) ? most : size;
}

// The items of a group make a row of the cache. One that is not finite is NaN as a whole; the scale
// of very small ones has no inverse, and they are 0.
void encode(
    __global const TOKEN* head, const bool is_key, const int position,
    __global const TABLE* cosines, __global const TABLE* sines, __local uint* row,
    __local float* partial, const int tid, const int items
) {
  float largest = 0.0f;
  // All items make each iteration: PoCL loses results of iterations that only some make.
  for (int base = 0; base < SIZE; base += items) {
    const int d = base + tid;
    if (d < SIZE) largest = larger(largest, joining(head, is_key, d, position, cosines, sines));
  }
  partial[tid] = largest;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < items; i++) largest = larger(largest, partial[i]);
  const float scale = isfinite(largest) ? largest / 127.0f : NAN;
  const float inverse = scale >= 1e-37f ? 1.0f / scale : 0.0f;
  for (int base = 0; base < CODES; base += items) {
    const int d = base + tid;
    const float x = d < SIZE ? joining(head, is_key, d, position, cosines, sines) : 0.0f;
    if (d < CODES) ((__local char*)row)[d] = convert_char_sat_rte(x * inverse);
  }
  if (tid == 0) row[CODES / 4] = as_uint(scale);
  barrier(CLK_LOCAL_MEM_FENCE);
}

// Brings such a row to its place.
void put_row(
    __global char* to, __local const uint* row, const int tid, const int items
) {
  // All items make each turn of the loop: PoCL lets those store, too, that have none of their own.
  for (int base = 0; base < PITCH / 4; base += items) {
    const int i = base + tid;
    if (i < PITCH / 4) ((__global uint*)to)[i] = row[i];
  }
}
#endif
