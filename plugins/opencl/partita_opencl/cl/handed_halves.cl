// Halves that groups of one launch hand to one another without a fence or a counter: a place is zero
// until its half is there, and who wants it looks until it is. Halves are stored with all bits inverted,
// so that only one NaN would be zero, which is never stored.
//
// When all groups have taken the last ones, which they count, one group puts zeros there.
//
// To be included behind waiting.cl. Options: ITEMS, HELD  eights that an item takes

#ifdef NVIDIA
#define LOOK_AT4(v, p) asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];" \
    : "=r"((v).x), "=r"((v).y), "=r"((v).z), "=r"((v).w) : "l"((size_t)(p)) : "memory")

// Whether something is so for any item of a warp, all of which ask; elsewhere, for the item itself.
bool of_any(const bool is_so) {
  uint any;
  asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; "
      "selp.u32 %0, 1, 0, q;}" : "=r"(any) : "r"((uint)is_so) : "memory");
  return any;
}
#else
#define LOOK_AT4(v, p) v = *(volatile __global const uint4*)(p)

bool of_any(const bool is_so) { return is_so; }
#endif

void hand_half(__global ushort* to, const float v) {
#ifdef NVIDIA
  asm volatile("{.reg .b16 h; cvt.rn.f16.f32 h, %1; not.b16 h, h; st.relaxed.gpu.global.b16 [%0], h;}"
      :: "l"((size_t)to), "f"(v) : "memory");
#else
  ushort bits;
  vstore_half(v, 0, (half*)&bits);
  *(volatile __global ushort*)to = isnan(v) ? 0x8000 : ~bits;
#endif
}

// Whether one of two halves is zero.
uint lacks_half(const uint word) { return (word - 0x00010001u) & ~word & 0x80008000u; }

// Eight neighbours of each ITEMS * 8 of a row of `depth`, as they are now; what is behind its end is
// there.
void look_at_halves(uint4* bits, __global const uint* from, const int depth, const int tid) {
  #pragma unroll
  for (int h = 0; h < HELD; h++) {
    const int k = (h * ITEMS + tid) * 8;
    bits[h] = (uint4)(~0u);
    if (k < depth) LOOK_AT4(bits[h], from + k / 2);
  }
}

// Whether all of them are there; inverted, they are as they were handed on.
bool has_halves(const uint4* bits) {
  uint lacking = 0;
  #pragma unroll
  for (int h = 0; h < HELD; h++)
    lacking |= lacks_half(bits[h].x) | lacks_half(bits[h].y) | lacks_half(bits[h].z) |
               lacks_half(bits[h].w);
  return !lacking;
}

// Waits until all groups have counted.
void await_passed(__global int* counter, const int groups, __global int* stall) {
  int looks = 0, passed = 0;
  do LOOK(passed, counter)
  while (passed < groups && ++looks < MOST_LOOKS);
  if (passed < groups) stall[1] = 1;
}
