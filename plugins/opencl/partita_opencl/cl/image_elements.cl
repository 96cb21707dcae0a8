// Elements X of images that are computed with in float. To be included; option: X_HALF  they are
// float16 in memory, else float32

#ifdef X_HALF
#define X half
#define GET_X(p, i) GET_HALF(p, i)
#define PUT_X(p, i, v) PUT_HALF(p, i, v)
#else
#define X float
#define GET_X(p, i) (p)[i]
#define PUT_X(p, i, v) (p)[i] = (v)
#endif
