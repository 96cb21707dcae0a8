// What every kernel file may use: access to elements, fences, activations. Epilogues take their
// activation as the option ACTIVATION, so that a kernel holds the code of one only.
//
// Options: HALF    elements are float16 in memory and float32 in registers
//          NVIDIA  inline PTX may be used

#ifdef HALF
#define REAL half
#define GET(p, i) vload_half((i), (p))
#define PUT(p, i, v) vstore_half((v), (i), (p))
// Four neighbours, the first of which is a multiple of four.
#define GET4(p, i) vloada_half4((i) / 4, (p))
#define PUT4(p, i, v) vstorea_half4((v), (i) / 4, (p))
#else
#define REAL float
#define GET(p, i) (p)[i]
#define PUT(p, i, v) (p)[i] = (v)
#define GET4(p, i) (*(__global const float4*)((p) + (i)))
#define PUT4(p, i, v) *(__global float4*)((p) + (i)) = (v)
#endif

// What this group has written is seen by groups that read an atomic written after it. NVIDIA makes
// of mem_fence a fence for the group only.
#ifdef NVIDIA
#define DEVICE_FENCE() asm volatile("membar.gl;" ::: "memory")
#else
#define DEVICE_FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#endif

// The codes of partita.lowering.activation.
enum { ACT_NONE, ACT_RELU, ACT_CLIP, ACT_LEAKY_RELU, ACT_HARD_SWISH, ACT_HARD_SIGMOID, ACT_SIGMOID,
       ACT_TANH, ACT_SILU, ACT_GELU, ACT_GELU_TANH, ACT_MISH, ACT_ELU, ACT_SOFTPLUS };

float sigmoid_of(const float x) { return 1.0f / (1.0f + exp(-x)); }

// log(1 + exp(x)) without overflow.
float softplus_of(const float x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }

float gelu_of(const float x) { return 0.5f * x * (1.0f + erf(x * M_SQRT1_2_F)); }

float gelu_tanh_of(const float x) {
  return 0.5f * x * (1.0f + tanh(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

// The comparisons keep NaN, as ONNX Runtime does; fmax and fmin would drop it.
float activate(const float x, const int kind, const float alpha, const float beta) {
  switch (kind) {
    case ACT_RELU: return x < 0.0f ? 0.0f : x;
    case ACT_CLIP: return x < alpha ? alpha : (x > beta ? beta : x);
    case ACT_LEAKY_RELU: return x < 0.0f ? alpha * x : x;
    case ACT_HARD_SWISH: return x * clamp(x * (1.0f / 6.0f) + 0.5f, 0.0f, 1.0f);
    case ACT_HARD_SIGMOID: return clamp(alpha * x + beta, 0.0f, 1.0f);
    case ACT_SIGMOID: return sigmoid_of(x);
    case ACT_TANH: return tanh(x);
    case ACT_SILU: return x * sigmoid_of(x);
    case ACT_GELU: return gelu_of(x);
    case ACT_GELU_TANH: return gelu_tanh_of(x);
    case ACT_MISH: return x * tanh(softplus_of(x));
    case ACT_ELU: return x < 0.0f ? alpha * expm1(x) : x;
    case ACT_SOFTPLUS: return softplus_of(x);
    default: return x;
  }
}
