  // The last group to arrive at a tile goes on alone; it sees what the others wrote to global
  // memory.
  DEVICE_FENCE();
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (tid == 0) {
    is_last = atomic_inc(counters + tile) == splits - 1;
    if (is_last) atomic_xchg(counters + tile, 0);  // for the next launch
  }
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (!is_last) return;
  DEVICE_FENCE();
