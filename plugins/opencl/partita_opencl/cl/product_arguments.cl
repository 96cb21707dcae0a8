    // The arguments of kernels that compute products by tiles, of elements ELEMENT and sums RESULT.
    __global const ELEMENT* restrict a, __global const ELEMENT* restrict b,
    __global const ELEMENT* restrict bias, __global const ELEMENT* restrict residual,
    __global RESULT* restrict y,
    const int rows, const int columns, const int depth, const int batches,
    // Matrix (z / div) % mod of a and b belongs to batch z; bias has one vector per (z % mod).
    const int4 batch_map, const int bias_mod,
    // bias index = m * x + n * y; x = y = 0 and has_bias = 0 without one.
    const int2 bias_step, const int has_bias, const int has_residual,
    const float alpha, const float beta, const int k_per_split, const int a_step
#ifdef HAND_OVER
    , __global float4* partial, __global int* counters, const int splits
#endif
#ifdef IM2COL
    // Per k: offset in the image, then its z, y, x; with CHANNELS per tap, for channel 0.
    , __global const int4* restrict taps,
    const int4 in_size,                    // x, y, z of the image, w: channels
    const int4 out_size,                   // x, y, z of the output
    const int4 stride, const int4 pad
#endif
