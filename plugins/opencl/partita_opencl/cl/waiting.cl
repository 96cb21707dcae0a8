// How work-groups of one launch, all of which are on the device, wait for one another: by counters in
// memory. Waiting is bounded: a group that has polled too often sets stall[1] and ends.

#define LINE 32  // counters for which groups wait have a cache line each
#define MOST_LOOKS 200000  // more than a millisecond on a GPU, which bound_plan.py relies on

// Other groups' results are read past the first-level cache, which is not coherent.
#ifdef NVIDIA
#define GET_FRESH4(v, p) asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" \
    : "=f"((v).x), "=f"((v).y), "=f"((v).z), "=f"((v).w) : "l"((size_t)(p)) : "memory")
#define SIGNAL(p) \
  { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"((size_t)(p)) : "memory"); }
#define PASS(p) \
  { asm volatile("red.relaxed.gpu.global.add.s32 [%0], 1;" :: "l"((size_t)(p)) : "memory"); }
#define LOOK(v, p) \
  { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"((size_t)(p)) : "memory"); }
#define COUNT(old, p) { asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" \
    : "=r"(old) : "l"((size_t)(p)) : "memory"); }
#define ORDER()  // the instructions above order the group's accesses around barriers
#else
// A fence must be reached by all items: drivers may implement it as a barrier.
#define ORDER() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define GET_FRESH4(v, p) v = *(p)
#define SIGNAL(p) { atomic_inc(p); }
#define PASS(p) { atomic_inc(p); }
#define LOOK(v, p) { v = atomic_add(p, 0); }
#define COUNT(old, p) { old = atomic_inc(p); }
#endif

#ifdef NVIDIA
#define FRESH(p) ((volatile __global const REAL*)(p))
#else
#define FRESH(p) (p)
#endif

// Eight neighbours that another group may have written.
void fresh8(float* v, __global const REAL* p) {
#if defined(HALF) && defined(NVIDIA)
  float4 bits;
  GET_FRESH4(bits, (__global const float4*)p);
  unpack8(v, as_uint4(bits));
#elif defined(NVIDIA)
  float4 low, high;
  GET_FRESH4(low, (__global const float4*)p);
  GET_FRESH4(high, (__global const float4*)p + 1);
  vstore8((float8)(low, high), 0, v);
#else
  GET8(v, p, 0);
#endif
}

// Waits until all groups have counted; returns whether they did. All items must call it together.
bool all_came(
    __global int* counter, const int groups, __global int* stall, __local int* word, const int tid
) {
  if (tid == 0) {
    int looks = 0, count = 0;
    do LOOK(count, counter)
    while (count < groups && ++looks < MOST_LOOKS);
    *word = looks >= MOST_LOOKS;
    if (*word) stall[1] = 1;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  ORDER();
  return *word == 0;
}

// Resets `count` counters, by the last group, when no group waits any more; the counter behind them
// says which one that is.
void leave_zeros(__global int* counters, const int count, const int groups, const int tid) {
  if (tid != 0) return;
  int before;
  COUNT(before, counters + count * LINE)
  if (before == groups - 1)
    for (int i = 0; i <= count; i++) counters[i * LINE] = 0;
}
