// Attention of halves: y = softmax(scale * q k' + mask) v for every batch and head, with the scores
// in registers. A group computes WARPS * 16 rows of one head, BLOCK keys at a time: new maxima scale
// down what was summed before (Dao et al., FlashAttention, 2022). Elements of a head are
// neighbours in memory and a multiple of eight; HD is their number, filled up to a multiple of 16.
// Without the option NVIDIA, an item computes one row by ordinary arithmetic.
//
// Options: HD, CHUNKS  eights of a row in local memory, a power of two, WARPS, BLOCK, MASK
//   ONE_BLOCK  there are at most BLOCK keys
//   NAN_IS_ZERO  a row without keys is 0

#define NEVER (-1e30f)
#ifdef NAN_IS_ZERO
#define INVERSE(total) ((total) > 0.0f ? 1.0f / (total) : 0.0f)
#else
#define INVERSE(total) (1.0f / (total))
#endif

#ifdef NVIDIA
#define SHARED(p) ((uint)(size_t)(p))
#define ITEMS (WARPS * 32)
// Chunks of 16 bytes, permuted so that ldmatrix reads eight rows from all banks.
#if CHUNKS >= 8
#define PLACE(r, c) (((r) * CHUNKS + ((c) ^ ((r) & 7))) * 16)
#elif CHUNKS == 4
#define PLACE(r, c) (((r) * 4 + ((c) ^ (((r) >> 1) & 3))) * 16)
#else
#define PLACE(r, c) (((r) * 2 + ((c) ^ (((r) >> 2) & 1))) * 16)
#endif
#define COPY(to, from, bytes) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" \
    :: "r"(SHARED(to)), "l"((size_t)(from)), "r"(bytes) : "memory")
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define ARRIVED(later) asm volatile("cp.async.wait_group %0;" :: "n"(later) : "memory")
#define LDMATRIX(a, b, c, d, p) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \
    : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(SHARED(p)) : "memory")
#define LDMATRIX_TRANSPOSED(a, b, c, d, p) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" \
    : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(SHARED(p)) : "memory")
#define MULTIPLY(c, a, b0, b1) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." UNIT_TYPE "." UNIT_TYPE \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
      "{%0,%1,%2,%3};" : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3]) \
      : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"(b0), "r"(b1))
// Of the four items that share a row.
#define OVER_ROW(v, how) { float other; \
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=f"(other) : "f"(v)); \
    v = how(v, other); \
    asm volatile("shfl.sync.bfly.b32 %0, %1, 2, 31, 0xffffffff;" : "=f"(other) : "f"(v)); \
    v = how(v, other); }
#define PLUS(a, b) ((a) + (b))
#endif

// Strides are x: batch, y: head, z: row; w: where the tensor's elements start.
#ifdef NVIDIA
__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
#else
__kernel
#endif
void attention(
    __global const half* restrict q, __global const half* restrict k,
    __global const half* restrict v, __global const half* restrict mask, __global half* restrict y,
    const int heads, const int rows, const int keys, const int elements,
    const int4 q_step, const int4 k_step, const int4 v_step, const int4 y_step,
    const int4 mask_step,  // w: step per key
    const float scale
) {
#ifdef NVIDIA
  const int blocks = (rows + WARPS * 16 - 1) / (WARPS * 16);
  const int head = get_group_id(0) / blocks % heads, batch = get_group_id(0) / blocks / heads;
  const int first_row = get_group_id(0) % blocks * (WARPS * 16);
#else
  const int head = get_global_id(0) / rows % heads, batch = get_global_id(0) / rows / heads;
  const int row = get_global_id(0) % rows;
#endif
  q += q_step.w + (size_t)batch * q_step.x + (size_t)head * q_step.y;
  k += k_step.w + (size_t)batch * k_step.x + (size_t)head * k_step.y;
  v += v_step.w + (size_t)batch * v_step.x + (size_t)head * v_step.y;
  y += y_step.w + (size_t)batch * y_step.x + (size_t)head * y_step.y;
#ifdef MASK
  mask += (size_t)batch * mask_step.x + (size_t)head * mask_step.y;
  #define MASK_AT(row, key) GET(mask, (size_t)(row) * mask_step.z + (key) * mask_step.w)
#ifdef NAN_IS_ZERO
  #define ADDED(row, key) MASK_AT(row, key)
#else
  // The smallest half, where there is infinity: a row without keys is some mean, not NaN.
  #define ADDED(row, key) fmax(MASK_AT(row, key), -65504.0f)
#endif
#else
  #define ADDED(row, key) 0.0f
#endif

#ifdef NVIDIA
  __local char q_tile[WARPS * 16 * CHUNKS * 16] __attribute__((aligned(1024)));
#ifdef ONE_BLOCK
#define AFTER(n) (n)
  __local char k_tile[1][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
  __local char v_tile[1][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
#else
#define AFTER(n) ((n) + 2)  // groups of copies for the next block may be under way
  __local char k_tile[2][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
  __local char v_tile[2][BLOCK * CHUNKS * 16] __attribute__((aligned(1024)));
#endif
  const int tid = get_local_id(0), lane = tid % 32, warp = tid / 32;
  const int used = HD / 8;
  for (int i = tid; i < WARPS * 16 * used; i += ITEMS) {
    const int r = i / used, c = i % used;
    const bool there = first_row + r < rows && c * 8 < elements;
    COPY(q_tile + PLACE(r, c), q + (size_t)(first_row + r) * q_step.z + c * 8, there ? 16 : 0);
  }
  // Keys and values of a block are two groups of copies: products with keys start before the values
  // are there.
  #define LOAD(tile, x, step, key0) { \
      _Pragma("unroll 4") for (int i = tid; i < BLOCK * used; i += ITEMS) { \
        const int r = i / used, c = i % used; \
        const bool there = (key0) + r < keys && c * 8 < elements; \
        COPY(tile + PLACE(r, c), x + (size_t)((key0) + r) * step.z + c * 8, there ? 16 : 0); } \
      COMMIT(); }
  LOAD(k_tile[0], k, k_step, 0)
  LOAD(v_tile[0], v, v_step, 0)

  const int row = first_row + warp * 16 + lane / 4;  // and eight below
  float peak[2] = { NEVER, NEVER }, total[2] = { 0.0f, 0.0f };
  float out[HD / 8][4];
  #pragma unroll
  for (int j = 0; j < HD / 8; j++)
    #pragma unroll
    for (int e = 0; e < 4; e++) out[j][e] = 0.0f;

  int stage = 0;
  for (int key0 = 0; key0 < keys; key0 += BLOCK, stage ^= 1) {
#ifndef ONE_BLOCK
    barrier(CLK_LOCAL_MEM_FENCE);  // the other stage is read no more
    LOAD(k_tile[stage ^ 1], k, k_step, key0 + BLOCK)
    LOAD(v_tile[stage ^ 1], v, v_step, key0 + BLOCK)
#endif
    ARRIVED(AFTER(1));
    barrier(CLK_LOCAL_MEM_FENCE);

    float s[BLOCK / 8][4];
    #pragma unroll
    for (int j = 0; j < BLOCK / 8; j++)
      #pragma unroll
      for (int e = 0; e < 4; e++) s[j][e] = 0.0f;
    #pragma unroll
    for (int c = 0; c < HD / 8; c += 2) {
      uint a[4];
      LDMATRIX(a[0], a[1], a[2], a[3], q_tile + PLACE(warp * 16 + lane % 16, c + lane / 16));
      #pragma unroll
      for (int j = 0; j < BLOCK / 8; j += 2) {
        uint b[4];
        const int r = j * 8 + lane / 16 * 8 + lane % 8;
        LDMATRIX(b[0], b[1], b[2], b[3], k_tile[stage] + PLACE(r, c + lane / 8 % 2));
        MULTIPLY(s[j], a, b[0], b[1]);
        MULTIPLY(s[j + 1], a, b[2], b[3]);
      }
    }

    #pragma unroll
    for (int h = 0; h < 2; h++) {
      float top = peak[h];
      #pragma unroll
      for (int j = 0; j < BLOCK / 8; j++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
          const int key = key0 + j * 8 + lane % 4 * 2 + e;
          float score = s[j][h * 2 + e] * scale;
#ifdef MASK
          if (row + h * 8 < rows && key < keys) score += ADDED(row + h * 8, key);
#endif
          score = key < keys ? score : NEVER;
          s[j][h * 2 + e] = score;
          top = fmax(top, score);
        }
      OVER_ROW(top, fmax)
      const float shrink = native_exp2((peak[h] - top) * M_LOG2E_F);
      peak[h] = top;
      float sum = 0.0f;
      #pragma unroll
      for (int j = 0; j < BLOCK / 8; j++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
          const float p = native_exp2((s[j][h * 2 + e] - top) * M_LOG2E_F);
          s[j][h * 2 + e] = p;
          sum += p;
        }
      OVER_ROW(sum, PLUS)
      total[h] = total[h] * shrink + sum;
      #pragma unroll
      for (int j = 0; j < HD / 8; j++) {
        out[j][h * 2] *= shrink;
        out[j][h * 2 + 1] *= shrink;
      }
    }

    ARRIVED(AFTER(0));
    barrier(CLK_LOCAL_MEM_FENCE);
    #pragma unroll
    for (int j = 0; j < BLOCK / 8; j += 2) {
      const uint a[4] = { pack2(s[j][0], s[j][1]), pack2(s[j][2], s[j][3]),
                          pack2(s[j + 1][0], s[j + 1][1]), pack2(s[j + 1][2], s[j + 1][3]) };
      #pragma unroll
      for (int c = 0; c < HD / 8; c += 2) {
        uint b[4];
        const int r = j * 8 + lane % 8 + lane / 8 % 2 * 8;
        LDMATRIX_TRANSPOSED(b[0], b[1], b[2], b[3], v_tile[stage] + PLACE(r, c + lane / 16));
        MULTIPLY(out[c], a, b[0], b[1]);
        MULTIPLY(out[c + 1], a, b[2], b[3]);
      }
    }
  }
  ARRIVED(0);
  #pragma unroll
  for (int h = 0; h < 2; h++) {
    if (row + h * 8 >= rows) continue;
    const float factor = INVERSE(total[h]);
    #pragma unroll
    for (int j = 0; j < HD / 8; j++)
      if (j * 8 < elements)
        PUT2(y, (size_t)(row + h * 8) * y_step.z + j * 8 + lane % 4 * 2,
             ((float2)(out[j][h * 2] * factor, out[j][h * 2 + 1] * factor)));
  }
#else
  float out[HD], peak = NEVER, total = 0.0f;
  for (int e = 0; e < HD; e++) out[e] = 0.0f;
  for (int key = 0; key < keys; key++) {
    float score = 0.0f;
    for (int e = 0; e < elements; e++)
      score += GET(q, (size_t)row * q_step.z + e) * GET(k, (size_t)key * k_step.z + e);
    score = score * scale + ADDED(row, key);
    const float top = fmax(peak, score), shrink = exp(peak - top), p = exp(score - top);
    total = total * shrink + p;
    for (int e = 0; e < elements; e++)
      out[e] = out[e] * shrink + p * GET(v, (size_t)key * v_step.z + e);
    peak = top;
  }
  for (int e = 0; e < elements; e++) PUT(y, (size_t)row * y_step.z + e, out[e] * INVERSE(total));
#endif
}
