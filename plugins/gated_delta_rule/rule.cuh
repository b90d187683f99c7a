// GatedDeltaRule: linear attention whose state is a matrix of each value head. qkv, a, b and y have 16 bits.
// See cuda/replay_rule.cuh.
//
// Macros: TL_KEY_HEADS, TL_VALUE_HEADS, TL_A_PITCH and TL_B_PITCH (elements from a row of a or b to the next), TL_FP16,
// and those of replay.cuh and state_span.cuh.
#pragma once

#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kKeys = TL_KEY_HEADS * TL_KEY_DIM;  // elements of all queries of a token, and of all keys
constexpr int kRowSize = 2 * kKeys + TL_VALUE_HEADS * TL_VALUE_DIM;
static_assert(TL_VALUE_HEADS % TL_KEY_HEADS == 0);

struct DeltaRule {
  static constexpr bool kCorrects = true, kNormalizes = true, kAddsValue = false;

  u16* y;
  const u16* qkv;
  const u16* a;
  const u16* b;
  const float* dt_biases;  // of the head
  float dt_bias;           // the first of them
  float a_log, scale, epsilon;
  int head;

  __device__ __forceinline__ const u16* query(u64 row) const {
    return qkv + row * kRowSize + head / (TL_VALUE_HEADS / TL_KEY_HEADS) * TL_KEY_DIM;
  }
  __device__ __forceinline__ const u16* key(u64 row) const { return query(row) + kKeys; }
  __device__ __forceinline__ const u16* values(u64 row) const {
    return qkv + row * kRowSize + 2 * kKeys + head * TL_VALUE_DIM;
  }
  __device__ __forceinline__ float key_scale(float squares) const { return rsqrtf(squares + epsilon); }
  __device__ __forceinline__ float query_scale(float squares) const { return scale * rsqrtf(squares + epsilon); }
  __device__ __forceinline__ u16 decay_bits(u64 row, int i) const {
    return a[row * TL_A_PITCH + head * TL_DECAY_DIM + i];
  }
  __device__ __forceinline__ u16 factor_bits(u64 row) const { return b[row * TL_B_PITCH + head]; }
  __device__ __forceinline__ float log_decay(float input, int i) const {
    return -expf(a_log) * softplus(input + (TL_DECAY_DIM == 1 ? dt_bias : dt_biases[i]));
  }
  static __device__ __forceinline__ float factor(float input) { return 1.0f / (1.0f + expf(-input)); }
  __device__ __forceinline__ u16* result(u64 row, int i) const {
    return y + (row * TL_VALUE_HEADS + head) * TL_VALUE_DIM + i;
  }
};

__device__ __forceinline__ DeltaRule delta_rule(u16* y, const u16* qkv, const u16* a, const u16* b, const float* a_log,
                                                const float* dt_bias, float scale, float epsilon, int head) {
  const float* const of_head = dt_bias + head * TL_DECAY_DIM;
  return {y, qkv, a, b, of_head, load_for_later(of_head), load_for_later(a_log + head), scale, epsilon, head};
}

}  // namespace tl
