// The sum of a value over the items of a work-group, all of which must call it.
//
// Options: ITEMS (a power of two)

float sum_over_group(__local float* partial, const int lid, const float value) {
  partial[lid] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = ITEMS / 2; step > 0; step /= 2) {
    if (lid < step) partial[lid] += partial[lid + step];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const float total = partial[0];
  barrier(CLK_LOCAL_MEM_FENCE);
  return total;
}
