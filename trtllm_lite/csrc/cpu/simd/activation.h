// Activation functions of vectors, and the choice among them by an operator's attribute.
#pragma once

#include "cpu/simd/simd.h"

namespace tl::TL_ISA {

// erfc(z) / 2 for z >= 0 to a few ulps: e^(-z^2) t P(t) with t = 1 / (1 + 0.3 z). The polynomial P approximates erfc(z)
// e^(z^2) / (2 t) best up to z = 10, beyond which the result is 0 in float32.
TL_INLINE Vec half_erfc(Vec z) {
  constexpr float kCoefficients[] = {0.0845939964f, 0.0853577405f, 0.0741687566f, 0.107466064f,  -0.0473320968f,
                                     0.273869276f,  -0.256146789f, 0.242785215f,  -0.0647621676f};
  const Vec t = broadcast(1.0f) / fma(broadcast(0.3f), z, broadcast(1.0f));
  Vec sum = broadcast(kCoefficients[8]);
  for (int i = 7; i >= 0; --i) sum = fma(sum, t, broadcast(kCoefficients[i]));
  return exp(zero() - z * z) * t * sum;
}

// x Phi(x), with Phi the cumulative distribution of the normal distribution (arXiv 1606.08415). The tail is computed
// directly, so that nothing cancels for large negative x.
TL_INLINE Vec gelu(Vec x) {
  const Vec negative = min(zero(), x), positive = max(zero(), x);
  const Vec tail = half_erfc((positive - negative) * broadcast(0.70710678f));
  return (positive - positive * tail) + negative * tail;
}

// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) as x / (1 + e^(-2 u)), u the argument of tanh (arXiv 1606.08415).
TL_INLINE Vec gelu_tanh(Vec x) {
  const Vec cubic = fma(x * x * broadcast(0.044715f), x, x);
  return x / (broadcast(1.0f) + exp(cubic * broadcast(-1.5957691f)));
}

// `Activation` is the enumeration of an operator, of which not all have the last one; the default case is the identity.
template <typename Activation>
TL_INLINE Vec activate(Activation activation, Vec x) {
  if constexpr (requires { Activation::kRelu2; }) {
    if (activation == Activation::kRelu2) return max(zero(), x) * x;  // arXiv 2109.08668
  }
  switch (activation) {
    case Activation::kSilu:
      return silu(x);
    case Activation::kGelu:
      return gelu(x);
    case Activation::kGeluTanh:
      return gelu_tanh(x);
    default:
      return x;
  }
}

// g sigmoid(1.702 g) (u + 1), where g and u are the clamped gate and up projections (arXiv 2508.10925).
TL_INLINE Vec swiglu_oai(Vec gate, Vec up) {
  const Vec limit = broadcast(7.0f), one = broadcast(1.0f);
  const Vec g = min(limit, gate), u = max(zero() - limit, min(limit, up));
  return g / (one + exp(g * broadcast(-1.702f))) * (u + one);
}

// Combines the gate and up projections of experts.
template <typename Activation>
TL_INLINE Vec gated(Activation activation, Vec gate, Vec up) {
  if (activation == Activation::kRelu) return max(zero(), gate) * up;
  return activation == Activation::kSwigluOai ? swiglu_oai(gate, up) : activate(activation, gate) * up;
}

}  // namespace tl::TL_ISA
