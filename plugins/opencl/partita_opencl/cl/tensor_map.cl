// Describes a matrix of halves to the copy engine of NVIDIA's Hopper, which then brings boxes of it:
// 64 columns by `high` rows, of 128 bytes each whose chunks are permuted as by CHUNK in
// streaming.cl; zeros where the matrix has ended. The instructions are those by which PTX lets a
// kernel change such a description; they change all of it.

__kernel void tensor_map(
    __global uchar* maps, __global const half* matrix, const int number, const int columns,
    const int rows, const int pitch, const int high
) {
#ifdef NVIDIA
  __global uchar* map = maps + number * 128;
  for (int i = 0; i < 16; i++) ((__global ulong*)map)[i] = 0;
#define SET(field, type, as, value) \
  asm volatile("//@@{ tensormap.replace.tile." field ".global.b1024." type " [%0]" as "; }" \
      :: "l"((size_t)map), value : "memory")
#define CHOOSE(field, value) \
  asm volatile("//@@{ tensormap.replace.tile." field ".global.b1024.b32 [%0], " value "; }" \
      :: "l"((size_t)map) : "memory")
  SET("global_address", "b64", ", %1", "l"((size_t)matrix));
  SET("rank", "b32", ", %1", "r"(1));
  SET("box_dim", "b32", ", 0, %1", "r"(64));
  SET("box_dim", "b32", ", 1, %1", "r"(high));
  SET("global_dim", "b32", ", 0, %1", "r"(columns));
  SET("global_dim", "b32", ", 1, %1", "r"(rows));
  SET("global_stride", "b64", ", 0, %1", "l"((size_t)pitch * 2));
  SET("element_stride", "b32", ", 0, %1", "r"(1));
  SET("element_stride", "b32", ", 1, %1", "r"(1));
  CHOOSE("elemtype", "6");
  CHOOSE("interleave_layout", "0");
  CHOOSE("swizzle_mode", "3");
  CHOOSE("fill_mode", "0");
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
#endif
}
