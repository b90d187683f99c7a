// Activation functions of one element in float32; each a few instructions, to the precision of 16-bit results.
#pragma once

#include "cuda/types.cuh"

namespace tl {

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

// x Phi(x), the tail by erfc, which does not cancel.
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * erfcf(x * -0.70710678f); }

// x/2 (1 + tanh(u)) = x / (1 + e^(-2 u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
  return x / (1.0f + __expf(-1.5957691f * (x + 0.044715f * x * x * x)));
}

// The numbers of plugins/cuda/activation.py.
template <int kActivation>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kActivation == 1) return silu(x);
  if constexpr (kActivation == 2) return gelu(x);
  if constexpr (kActivation == 3) return gelu_tanh(x);
  return x;
}

}  // namespace tl
