// Activations of gates.
//
// Options: ACTIVATION  of the gate
//   LIMIT  instead, as GPT-OSS gates: the largest gate, and the largest size of the other factor

float gated(const float gate, const float v, const float alpha, const float beta) {
#ifdef LIMIT
  const float most = gate > LIMIT ? LIMIT : gate;
  return most * sigmoid_of(alpha * most) * (within(v, -LIMIT, LIMIT) + beta);
#else
  return activate(gate, ACTIVATION, alpha, beta) * v;
#endif
}
