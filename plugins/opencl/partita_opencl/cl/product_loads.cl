// How the items of a group bring tiles of a and b to local memory: each loads its share of the next
// tiles into registers while the last ones are multiplied, and stores it when these are done.
//
// To be included before the kernel, which begins with product_place.cl. Options of the kernel:
//   A_PACKED   a is stored [k][m] with a_step elements per k (weights, packed once), else [m][k]
//   A_VECTORS  a is read by vectors: a_step, or the depth, is a multiple of VECTOR
//   B_VECTORS  b is read by vectors: columns is a multiple of VECTOR
//   WHOLE      the depth is a multiple of BK
//   IM2COL     b[k][n] is pixel n of the window tap k of an image (n = output pixel)
//   CHANNELS   IM2COL whose k runs over channels first, of which there are a multiple of BK, then
//              over at most 32 taps
// The file that includes this defines
//   BM BN BK                 tile sizes
//   ITEMS                    items of a group
//   A_ROW B_ROW              elements from row to row of the tiles
//   VECTOR                   elements of a vector
//   SCALAR_TYPE VECTOR_TYPE  what elements and vectors are in registers and local memory
//   GET_SCALAR GET_VECTOR    read them from global memory, at a sum without parentheses
//   NO_SCALAR NO_VECTOR      zeros of these types
//   STORE_A                  where a is not packed

#ifdef WHOLE
#define IN_DEPTH(k) true
#else
#define IN_DEPTH(k) ((k) < k_end)
#endif

#ifdef A_VECTORS
#define A_LOADS (BM * BK / VECTOR / ITEMS)
#define A_TYPE VECTOR_TYPE
#else
#define A_LOADS (BM * BK / ITEMS)
#define A_TYPE SCALAR_TYPE
#endif
#if defined(B_VECTORS) && !defined(IM2COL)
#define B_LOADS (BN * BK / VECTOR / ITEMS)
#define B_TYPE VECTOR_TYPE
#else
#define B_LOADS (BN * BK / ITEMS)
#define B_TYPE SCALAR_TYPE
#endif

#if defined(A_PACKED) && defined(A_VECTORS)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % (BM / VECTOR) * VECTOR; \
      const int k = (k0) + e / (BM / VECTOR); a_next[i] = (m < a_step && IN_DEPTH(k)) ? \
        GET_VECTOR(a, (size_t)k * a_step + m) : NO_VECTOR; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      *(__local VECTOR_TYPE*)(a_tile[s] + e / (BM / VECTOR) * A_ROW + \
                              e % (BM / VECTOR) * VECTOR) = a_next[i]; }
#elif defined(A_PACKED)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e % BM, k = (k0) + e / BM; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? GET_SCALAR(a, (size_t)k * a_step + m) : NO_SCALAR; }
  #define STORE_A(s) { const int e = tid + i * ITEMS; \
      a_tile[s][e / BM * A_ROW + e % BM] = a_next[i]; }
#elif defined(A_VECTORS)
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / (BK / VECTOR); \
      const int k = (k0) + e % (BK / VECTOR) * VECTOR; a_next[i] = (m < rows && IN_DEPTH(k)) ? \
        GET_VECTOR(a, (size_t)m * depth + k) : NO_VECTOR; }
#else
  #define LOAD_A(k0) { const int e = tid + i * ITEMS, m = m0 + e / BK, k = (k0) + e % BK; \
      a_next[i] = (m < rows && IN_DEPTH(k)) ? GET_SCALAR(a, (size_t)m * depth + k) : NO_SCALAR; }
#endif

#define INSIDE(t) ((uint)(ix + (t).w) < (uint)in_size.x && \
                   (uint)(iy + (t).z) < (uint)in_size.y && (uint)(iz + (t).y) < (uint)in_size.z)
#if defined(CHANNELS)
  #define LOAD_B(k0) { b_next[i] = (inside >> tap) & 1u ? GET_SCALAR(b, from + i * b_rows * plane) \
                                                       : NO_SCALAR; }
  #define AFTER_B() { channel += BK; from += BK * plane; \
      if (channel == in_size.w) { channel = 0; tap++; from = origin + bk * plane + taps[tap].x; } }
#elif defined(IM2COL)
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; SCALAR_TYPE v = 0; \
      if (k < k_end && bn < columns) { const int4 t = taps[k]; \
        if (INSIDE(t)) v = GET_SCALAR(b, origin + t.x); } \
      b_next[i] = v; }
  #define AFTER_B()
#elif defined(B_VECTORS)
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; \
      b_next[i] = (IN_DEPTH(k) && bn < columns) ? \
        GET_VECTOR(b, (size_t)k * columns + bn) : NO_VECTOR; }
  #define AFTER_B()
#else
  #define LOAD_B(k0) { const int k = (k0) + bk + i * b_rows; \
      b_next[i] = (IN_DEPTH(k) && bn < columns) ? \
        GET_SCALAR(b, (size_t)k * columns + bn) : NO_SCALAR; }
  #define AFTER_B()
#endif
#if defined(B_VECTORS) && !defined(IM2COL)
  #define STORE_B(s) { \
      *(__local VECTOR_TYPE*)(b_tile[s] + (bk + i * b_rows) * B_ROW + b_at) = b_next[i]; }
#else
  #define STORE_B(s) { b_tile[s][(bk + i * b_rows) * B_ROW + b_at] = b_next[i]; }
#endif

#define LOAD(k0) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) LOAD_A(k0) \
                   _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) LOAD_B(k0) AFTER_B() }
#define STORE(s) { _Pragma("unroll") for (int i = 0; i < A_LOADS; i++) STORE_A(s) \
                   _Pragma("unroll") for (int i = 0; i < B_LOADS; i++) STORE_B(s) }
