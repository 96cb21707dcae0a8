  // Which tile of the result a group computes, which k it sums up, and where an item loads b from.
  const int column_tiles = (columns + BN - 1) / BN;
  const int row_tiles = (rows + BM - 1) / BM;
  const size_t tiles = (size_t)column_tiles * row_tiles * batches;
  const size_t tile = get_group_id(0) % tiles;
  const int split = (int)(get_group_id(0) / tiles);
  const int n0 = (int)(tile % column_tiles) * BN;
  const int m0 = (int)(tile / column_tiles % row_tiles) * BM;
  const int z = (int)(tile / column_tiles / row_tiles);
  const int k_begin = split * k_per_split;
  const int k_end = min(depth, k_begin + k_per_split);

#ifdef A_PACKED
  a += (size_t)((z / batch_map.x) % batch_map.y) * depth * a_step;
#else
  a += (size_t)((z / batch_map.x) % batch_map.y) * rows * depth;
#endif
#ifdef IM2COL
  const int plane = in_size.z * in_size.y * in_size.x;
  b += (size_t)z * in_size.w * plane;
#else
  b += (size_t)((z / batch_map.z) % batch_map.w) * depth * columns;
#endif
  // The column of b that an item loads stays the same for the whole k loop.
#if defined(B_VECTORS) && !defined(IM2COL)
  const int b_at = tid % (BN / VECTOR) * VECTOR, bk = tid / (BN / VECTOR);
  const int b_rows = ITEMS / (BN / VECTOR);
#else
  const int b_at = tid % BN, bk = tid / BN;
  const int b_rows = ITEMS / BN;
#endif
  const int bn = n0 + b_at;
#ifdef IM2COL
  const int ox = bn % out_size.x;
  const int oy = (bn / out_size.x) % out_size.y;
  const int oz = bn / (out_size.x * out_size.y);
  const int ix = ox * stride.x - pad.x;
  const int iy = oy * stride.y - pad.y;
  const int iz = oz * stride.z - pad.z;
  const int origin = (iz * in_size.y + iy) * in_size.x + ix;
#endif
#ifdef CHANNELS
  uint inside = 0;  // a bit per tap
  if (bn < columns)
    for (int t = 0; t < depth / in_size.w; t++) {
      const int4 at = taps[t];
      if (INSIDE(at)) inside |= 1u << t;
    }
  int tap = k_begin / in_size.w;
  int channel = k_begin % in_size.w;
  int from = origin + taps[tap].x + (channel + bk) * plane;
#endif
