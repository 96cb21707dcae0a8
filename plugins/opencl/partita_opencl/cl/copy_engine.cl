// Barriers in local memory that count bytes: kernels wait with them for NVIDIA's copy engine.
//
// To be included behind warp_units.cl.

#ifdef NVIDIA
#define WARP_BARRIER() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")
#define INIT(at, count) \
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at), "r"(count) : "memory")
#define ARRIVE(at) asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory")
#define EXPECT(at, bytes) asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" \
    :: "r"(at), "r"(bytes) : "memory")
// Neighbouring bytes, whose number and both places are multiples of 16.
#define BRING_BYTES(to, from, bytes, at) \
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes " \
      "[%0], [%1], %2, [%3];" :: "r"(to), "l"((size_t)(from)), "r"(bytes), "r"(at) : "memory")

bool is_there(const uint at, const uint parity) {
  uint done;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
  return done;
}

void await(const uint at, const uint parity) {
  uint done;
  do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; "
         "selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at), "r"(parity) : "memory");
  while (!done);
}
#endif
