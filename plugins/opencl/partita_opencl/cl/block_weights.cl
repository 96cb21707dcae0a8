// Weights of a few bits in blocks that share a scale: columns of a product, each of them `units`
// times 16 bytes, the first element in the lowest bits (as ONNX Runtime's MatMulNBits has them).
// What an element stands for is scale * (number - zero), or scale * number - offset.
//
// Options: BITS  4 or 8, or 16 or 32: halves or floats, which have no scales
//   BLOCK    elements of a block, a power of two from 16
//   SCALES   the type of scales: float, or half
//   ZERO     the zero of all blocks; otherwise there are offsets, of type OFFSETS

#define ELEMENTS (128 / BITS)
#define QUADS (ELEMENTS / 4)
#if BLOCK < ELEMENTS
#define PARTS (ELEMENTS / BLOCK)
#else
#define PARTS 1
#endif
#define UNITS_OF_BLOCK (BLOCK * PARTS / ELEMENTS)
#define FIRST_BLOCK(unit) ((unit) * PARTS / UNITS_OF_BLOCK)

float value_of_float(__global const float* p, const size_t i) { return p[i]; }
float value_of_half(__global const half* p, const size_t i) { return GET_HALF(p, i); }
#define VALUE_OF_(type) value_of_##type
#define VALUE_OF(type) VALUE_OF_(type)
#define GET_SCALE(p, i) VALUE_OF(SCALES)(p, i)

// The same in two steps: as it lies in memory, and as a number.
typedef float raw_float;
typedef ushort raw_half;
#define RAW_(type) raw_##type
#define RAW(type) RAW_(type)
float number_of_float(const float v) { return v; }
float number_of_half(const ushort bits) {
#ifdef NVIDIA
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(bits));
  return v;
#elif defined(BFLOAT)
  return float_of(bits);
#else
  return vload_half(0, (const half*)&bits);
#endif
}
#define NUMBER_OF_(type) number_of_##type
#define NUMBER_OF(type) NUMBER_OF_(type)

// A float whose last bits are those of the word, without a conversion: a GPU does few of these.
#ifdef ZERO
#define NUMBER(word, from) (as_float(((word) & (MOST << (from))) | (uint)(150 - (from)) << 23) - \
                            (float)((1 << (23 - (from))) + ZERO))
#define OFFSET_TYPE float
#else
#define NUMBER(word, from) (as_float(((word) & (MOST << (from))) | (uint)(150 - (from)) << 23) - \
                            (float)(1 << (23 - (from))))
#define OFFSET_TYPE OFFSETS
#define GET_OFFSET(p, i) VALUE_OF(OFFSETS)(p, i)
#endif

// Four elements of a unit, less the zero of all blocks if there is one.
#if BITS == 16
#define UNSCALED
float4 quad_of(const uint* words, const int quad) {
#if defined(BFLOAT) || defined(NVIDIA)
  return unpack4((uint2)(words[2 * quad], words[2 * quad + 1]));
#else
  return vload_half4(0, (const half*)(words + 2 * quad));
#endif
}
#elif BITS == 32
#define UNSCALED
float4 quad_of(const uint* words, const int quad) { return as_float4(vload4(0, words)); }
#elif BITS == 4
#define MOST 15u
float4 quad_of(const uint* words, const int quad) {
  const uint word = words[quad / 2] >> (quad % 2 * 16);
  return (float4)(NUMBER(word, 0), NUMBER(word, 4), NUMBER(word, 8), NUMBER(word, 12));
}
#else
#define MOST 255u
float4 quad_of(const uint* words, const int quad) {
  const uint low = words[quad], high = low >> 16;
  return (float4)(NUMBER(low, 0), NUMBER(low, 8), NUMBER(high, 0), NUMBER(high, 8));
}
#endif
