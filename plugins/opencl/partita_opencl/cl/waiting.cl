// How work-groups of one launch, all of which are on the device, wait for one another: by counters in
// memory. Waiting is bounded: a group that looks too often leaves a mark and ends.

#define LINE 32  // counters for which groups wait have a cache line each
#define MOST_LOOKS 200000  // takes a GPU more than a millisecond, on which bound_plan.py counts

// Other groups' results are read past the first cache, which does not hear of them.
#ifdef NVIDIA
#define GET_FRESH4(v, p) asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" \
    : "=f"((v).x), "=f"((v).y), "=f"((v).z), "=f"((v).w) : "l"((size_t)(p)) : "memory")
#define SIGNAL(p) \
  { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"((size_t)(p)) : "memory"); }
#define LOOK(v, p) \
  { asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"((size_t)(p)) : "memory"); }
#define COUNT(old, p) { asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" \
    : "=r"(old) : "l"((size_t)(p)) : "memory"); }
#define ORDER()  // the instructions above order what the items of the group did round barriers
#else
// A fence must not stand where only one item comes: drivers may make a barrier of it.
#define ORDER() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define GET_FRESH4(v, p) v = *(p)
#define SIGNAL(p) { atomic_inc(p); }
#define LOOK(v, p) { v = atomic_add(p, 0); }
#define COUNT(old, p) { old = atomic_inc(p); }
#endif
