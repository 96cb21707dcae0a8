// Shared by all kernel files: access to elements, fences, activations. Epilogues take their
// activation as the option ACTIVATION, so that a kernel holds the code of one only.
//
// Options: HALF    elements are float16 in memory and float32 in registers
//          BFLOAT  with HALF: they are bfloat16
//          NVIDIA  inline PTX may be used
//          PLAIN   a * b + c in place of fma, for drivers that fail at it

#ifdef PLAIN
#define fma(a, b, c) ((a) * (b) + (c))
#endif

// Halves in memory, whatever the other elements are. Of two or four neighbours, the first one's
// place is a multiple of two or four.
#ifdef BFLOAT
#define half ushort
#define UNIT_TYPE "bf16"

float float_of(const ushort bits) { return as_float((uint)bits << 16); }

ushort bits_of(const float v) {
  const uint bits = as_uint(v);
  if (isnan(v)) return (ushort)(bits >> 16 | 0x40);
  return (ushort)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // to the nearest, of two the even one
}
#else
#define UNIT_TYPE "f16"
#endif

#if defined(BFLOAT) || (defined(HALF) && defined(NVIDIA))
#ifdef BFLOAT
#define GET_HALF(p, i) float_of((p)[i])
#define PUT_HALF(p, i, v) (p)[i] = bits_of(v)

float2 unpack2(const uint bits) {
  return (float2)(as_float(bits << 16), as_float(bits & 0xffff0000u));
}

uint pack2(const float low, const float high) {
#ifdef NVIDIA
  uint bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return (uint)bits_of(high) << 16 | bits_of(low);
#endif
}
#else
// The driver converts by instructions in arithmetic only, though it does not list the extension.
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define GET_HALF(p, i) ((float)(p)[i])
#define PUT_HALF(p, i, v) (p)[i] = (half)(v)

float2 unpack2(const uint bits) {
  float2 v;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(v.x), "=f"(v.y) : "r"(bits));
  return v;
}

uint pack2(const float low, const float high) {
  uint bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
#endif
#define GET_LOCAL(p, i) GET_HALF(p, i)
#define GET_HALF4(p, i) unpack4(*(__global const uint2*)((p) + (i)))
#define PUT_HALF4(p, i, v) *(__global uint2*)((p) + (i)) = pack4(v)
#define PUT_HALF2(p, i, v) *(__global uint*)((p) + (i)) = pack2((v).x, (v).y)

float4 unpack4(const uint2 bits) { return (float4)(unpack2(bits.x), unpack2(bits.y)); }

uint2 pack4(const float4 v) { return (uint2)(pack2(v.x, v.y), pack2(v.z, v.w)); }

// Eight neighbours, the first at a multiple of eight.
#define PUT_HALF8(p, i, v) *(__global uint4*)((p) + (i)) = (uint4)(pack2((v)[0], (v)[1]), \
    pack2((v)[2], (v)[3]), pack2((v)[4], (v)[5]), pack2((v)[6], (v)[7]))
#define GET_HALF8(v, p, i) unpack8(v, *(__global const uint4*)((p) + (i)))

void unpack8(float* v, const uint4 bits) {
  const float4 low = unpack4(bits.xy), high = unpack4(bits.zw);
  v[0] = low.x; v[1] = low.y; v[2] = low.z; v[3] = low.w;
  v[4] = high.x; v[5] = high.y; v[6] = high.z; v[7] = high.w;
}
#define GET_LOCAL2(p, i) unpack2(*(__local const uint*)((p) + (i)))
#define PUT_LOCAL2(p, i, v) *(__local uint*)((p) + (i)) = pack2((v).x, (v).y)
#define GET_LOCAL8(v, p) unpack8(v, *(__local const uint4*)(p))
#define PUT_LOCAL8(p, v) *(__local uint4*)(p) = (uint4)(pack2((v)[0], (v)[1]), \
    pack2((v)[2], (v)[3]), pack2((v)[4], (v)[5]), pack2((v)[6], (v)[7]))
#else
#define GET_HALF(p, i) vload_half((i), (p))
#define PUT_HALF(p, i, v) vstore_half((v), (i), (p))
#define GET_HALF4(p, i) vloada_half4((i) / 4, (p))
#define PUT_HALF4(p, i, v) vstorea_half4((v), (i) / 4, (p))
#define PUT_HALF2(p, i, v) vstorea_half2((v), (i) / 2, (p))
#define GET_LOCAL(p, i) vload_half((i), (p))
#define GET_LOCAL8(v, p) vstore8(vload_half8(0, (__local const half*)(p)), 0, v)
#define PUT_LOCAL8(p, v) vstore_half8(vload8(0, v), 0, (__local half*)(p))
#define GET_LOCAL2(p, i) vload_half2((i) / 2, (p))
#define PUT_LOCAL2(p, i, v) vstore_half2((v), (i) / 2, (p))
#define PUT_HALF8(p, i, v) vstore_half8(vload8(0, v), (i) / 8, (p))
#define GET_HALF8(v, p, i) vstore8(vload_half8((i) / 8, (p)), 0, v)
#endif

#ifdef HALF
#define REAL half
#define GET(p, i) GET_HALF(p, i)
#define PUT(p, i, v) PUT_HALF(p, i, v)
#define GET4(p, i) GET_HALF4(p, i)
#define PUT4(p, i, v) PUT_HALF4(p, i, v)
#define PUT2(p, i, v) PUT_HALF2(p, i, v)
#define GET8(v, p, i) GET_HALF8(v, p, i)
#define PUT8(p, i, v) PUT_HALF8(p, i, v)
#else
#define REAL float
#define GET(p, i) (p)[i]
#define PUT(p, i, v) (p)[i] = (v)
#define GET4(p, i) (*(__global const float4*)((p) + (i)))
#define PUT4(p, i, v) *(__global float4*)((p) + (i)) = (v)
#define GET8(v, p, i) vstore8(*(__global const float8*)((p) + (i)), 0, v)
#define PUT8(p, i, v) *(__global float8*)((p) + (i)) = vload8(0, v)
#endif

// What this group has written is seen by groups that read an atomic written after it. NVIDIA makes
// of mem_fence a fence for the group only.
#ifdef NVIDIA
#define DEVICE_FENCE() asm volatile("membar.gl;" ::: "memory")
#else
#define DEVICE_FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

#ifdef NORMALIZE
// The sum of a value over the items of a warp; all items of the group must call it together.
#ifdef NVIDIA
float sum_over_warp(float v, __local float* unused, const int tid) {
  #pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    float other;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
        : "=f"(other) : "f"(v), "r"(step));
    v += other;
  }
  return v;
}
#else
float sum_over_warp(const float v, __local float* partial, const int tid) {
  partial[tid] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0.0f;
  for (int i = 0; i < 32; i++) sum += partial[tid / 32 * 32 + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
}
#endif

// A value of another item of the warp.
float from_lane(const float v, const int lane, __local float* shared, const int tid) {
#ifdef NVIDIA
  float other;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
      : "=f"(other) : "f"(v), "r"(lane));
  return other;
#else
  barrier(CLK_LOCAL_MEM_FENCE);  // other items may still read the old values
  shared[tid] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  const float other = shared[tid / 32 * 32 + lane % 32];
  barrier(CLK_LOCAL_MEM_FENCE);
  return other;
#endif
}
#endif

// The codes of partita.lowering.activation.
enum { ACT_NONE, ACT_RELU, ACT_CLIP, ACT_LEAKY_RELU, ACT_HARD_SWISH, ACT_HARD_SIGMOID, ACT_SIGMOID,
       ACT_TANH, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_MISH, ACT_ELU, ACT_SOFTPLUS };

float sigmoid_of(const float x) { return 1.0f / (1.0f + exp(-x)); }

// log(1 + exp(x)) without overflow.
float softplus_of(const float x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }

// The remainder of division rounded down: it has the sign of the divisor.
float floored_mod(const float x, const float y) {
  const float rest = fmod(x, y);
  if (rest == 0.0f) return copysign(0.0f, y);
  return (rest < 0.0f) != (y < 0.0f) ? rest + y : rest;
}

#if defined(HALF) && defined(NVIDIA)
// By formula 7.1.26 of Abramowitz and Stegun, whose error of 1.5e-7 no half shows: the driver's erf
// takes as long as the product before it.
float gelu_of(const float x) {
  const float a = fabs(x) * M_SQRT1_2_F;
  const float t = native_recip(1.0f + 0.3275911f * a);
  const float sum = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t +
                     0.254829592f) * t;
  const float erf_a = 1.0f - sum * native_exp2(-a * a * M_LOG2E_F);
  return 0.5f * x * (1.0f + copysign(erf_a, x));
}
#else
float gelu_of(const float x) { return 0.5f * x * (1.0f + erf(x * M_SQRT1_2_F)); }
#endif

// Exact where it saturates, which drivers' tanh need not be: quantization depends on it.
float tanh_of(const float x) {
  const float a = fabs(x);
  const float t = expm1(2.0f * a);
  return copysign(a > 9.02f ? 1.0f : t / (t + 2.0f), x);
}

float gelu_tanh_of(const float x) {
  return 0.5f * x * (1.0f + tanh_of(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// The comparisons keep NaN, as ONNX Runtime does; fmax, fmin and clamp would drop it.
float within(const float x, const float low, const float high) {
  return x < low ? low : (x > high ? high : x);
}

float activate(const float x, const int kind, const float alpha, const float beta) {
  switch (kind) {
    case ACT_RELU: return x < 0.0f ? 0.0f : x;
    case ACT_CLIP: return within(x, alpha, beta);
    case ACT_LEAKY_RELU: return x < 0.0f ? alpha * x : x;
    case ACT_HARD_SWISH: return x * within(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f);
    case ACT_HARD_SIGMOID: return within(alpha * x + beta, 0.0f, 1.0f);
    case ACT_SIGMOID: return sigmoid_of(x);
    case ACT_TANH: return tanh_of(x);
    case ACT_SILU: return x * sigmoid_of(x);
    case ACT_GELU: return gelu_of(x);
    case ACT_GELU_TANH: return gelu_tanh_of(x);
    case ACT_MISH: return x * tanh_of(softplus_of(x));
    case ACT_ELU: return x < 0.0f ? alpha * expm1(x) : x;
    case ACT_SOFTPLUS: return softplus_of(x);
    default: return x;
  }
}
