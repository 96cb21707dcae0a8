// The gates of LSTM, GRU and RNN, and their activations.

#if defined(LSTM)
#define GATES 4
#define FUNCTIONS 3
#elif defined(GRU)
#define GATES 3
#define FUNCTIONS 2
#else
#define GATES 1
#define FUNCTIONS 1
#endif

#define ROW (GATES * HIDDEN)
#define CLIPPED(v) (clip > 0.0f ? within(v, -clip, clip) : (v))

#if defined(HALF) && defined(NVIDIA)
// Off by 2e-7, which no half shows.
float sigmoid_of_gate(const float x) {
  return native_recip(1.0f + native_exp2(-M_LOG2E_F * x));
}

float tanh_of_gate(const float x) {
  const float square = x * x;
  const float near = x * (1.0f + square * (-0.33333333f + square * 0.13333333f));
  const float far = 1.0f - 2.0f * native_recip(1.0f + native_exp2(2.0f * M_LOG2E_F * x));
  return square < 0.01f ? near : far;
}
#else
#define sigmoid_of_gate(x) sigmoid_of(x)
#define tanh_of_gate(x) tanh_of(x)
#endif

// One of partita.lowering.gate_activations, by its number.
float function_of(const float v, const int code, __global const float* parameters) {
  const float alpha = parameters[0], beta = parameters[1];
  switch (code) {
    case 0: return sigmoid_of_gate(v);
    case 1: return tanh_of_gate(v);
    case 2: return v < 0.0f ? 0.0f : v;
    case 3: return alpha * v + beta;
    case 4: return v < 0.0f ? alpha * v : v;
    case 5: return v < alpha ? 0.0f : v;
    case 6: return alpha * tanh_of_gate(beta * v);
    case 7: return within(alpha * v + beta, 0.0f, 1.0f);
    case 8: return v < 0.0f ? alpha * expm1(v) : v;
    case 9: return v / (1.0f + fabs(v));
    default: return softplus_of(v);
  }
}
