// What a warp of NVIDIA's does by itself: copies that arrive later, and products by matrix units.

#ifdef NVIDIA
#define SHARED(p) ((uint)(size_t)(p))
#define COPY(to, from, bytes) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" \
    :: "r"(SHARED(to)), "l"((size_t)(from)), "r"(bytes) : "memory")
#define COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define ARRIVED(later) asm volatile("cp.async.wait_group %0;" :: "n"(later) : "memory")
#define LOAD_FRAGMENTS(a, b, c, d, p) \
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \
    : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(SHARED(p)) : "memory")
#define MULTIPLY(c, a, b) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." UNIT_TYPE "." UNIT_TYPE \
      ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, " \
      "{%0,%1,%2,%3};" : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3]) \
      : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
#endif
