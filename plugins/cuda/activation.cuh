// Activation functions of one float32 element. Each takes a few instructions and is accurate enough for 16-bit results.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// 1 / (1 + exp(-x)) in four instructions; a division takes more than ten. Where the exponential overflows float32, the
// result is 0, its limit.
__device__ __forceinline__ float sigmoid(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
  return inverse;
}
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }

// x Phi(x). The tail is computed by erfc, which avoids cancellation.
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * erfcf(x * -0.70710678f); }

// x/2 (1 + tanh(u)) = x / (1 + e^(-2 u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
  return x / (1.0f + __expf(-1.5957691f * (x + 0.044715f * x * x * x)));
}

// The cases are the values of TL_ACTIVATION in plugins/cuda/activation.py.
template <int kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == 1) return silu(x);
  if constexpr (kActivation == 2) return gelu(x);
  if constexpr (kActivation == 3) return gelu_tanh(x);
  if constexpr (kActivation == 5) return x < 0.0f ? 0.0f : x;  // keeps NaN
  if constexpr (kActivation == 6) return x < 0.0f ? 0.0f : x * x;
  return x;
}

// Combines the two sums of a gated product. Activation 4 clamps both, as its schema says, and keeps NaN.
template <int kActivation>
__device__ __forceinline__ float gated(float gate, float up) {
  if constexpr (kActivation == 4) {
    constexpr float kLimit = 7.0f;
    const float g = gate > kLimit ? kLimit : gate, u = up > kLimit ? kLimit : up < -kLimit ? -kLimit : up;
    return g / (1.0f + __expf(-1.702f * g)) * (u + 1.0f);
  }
  return activate<kActivation>(gate) * up;
}

}  // namespace tl
