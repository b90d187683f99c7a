// Mamba2: a state space model whose state is a matrix of each head. xbc, dt and y have 16 bits. See
// cuda/replay_rule.cuh: B is a key, C a query, and x, times the step, an update.
//
// Macros: TL_HEADS, TL_GROUPS, TL_DT_PITCH (elements from a row of dt to the next), TL_FP16, and those of replay.cuh
// and state_span.cuh.
#pragma once

#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kInputs = TL_HEADS * TL_VALUE_DIM;  // elements of the inputs of all heads of a token
constexpr int kVectors = TL_GROUPS * TL_KEY_DIM;  // elements of B of all groups, and of C
constexpr int kRowSize = kInputs + 2 * kVectors;
static_assert(TL_HEADS % TL_GROUPS == 0 && TL_DECAY_DIM == 1);

struct StateSpace {
  static constexpr bool kCorrects = false, kNormalizes = false, kAddsValue = true;

  u16* y;
  const u16* xbc;
  const u16* dt;
  float a_log, bias, least, greatest, d;
  int head;

  // B of the head's group; C lies kVectors elements behind it.
  __device__ __forceinline__ const u16* key(u64 row) const {
    return xbc + row * kRowSize + kInputs + head / (TL_HEADS / TL_GROUPS) * TL_KEY_DIM;
  }
  __device__ __forceinline__ const u16* query(u64 row) const { return key(row) + kVectors; }
  __device__ __forceinline__ const u16* values(u64 row) const { return xbc + row * kRowSize + head * TL_VALUE_DIM; }
  __device__ __forceinline__ u16 decay_bits(u64 row, int) const { return factor_bits(row); }
  __device__ __forceinline__ u16 factor_bits(u64 row) const { return dt[row * TL_DT_PITCH + head]; }
  __device__ __forceinline__ float log_decay(float input, int) const { return -expf(a_log) * factor(input); }
  // The step.
  __device__ __forceinline__ float factor(float input) const {
    const float step = softplus(input + bias);
    return step < least ? least : step > greatest ? greatest : step;  // NaN stays NaN
  }
  __device__ __forceinline__ u16* result(u64 row, int i) const { return y + row * kInputs + head * TL_VALUE_DIM + i; }
  __device__ __forceinline__ float of_value() const { return d; }
};

__device__ __forceinline__ StateSpace state_space(u16* y, const u16* xbc, const u16* dt, const float* a_log,
                                                  const float* dt_bias, const float* d, float least, float greatest,
                                                  int head) {
  return {y,
          xbc,
          dt,
          load_for_later(a_log + head),
          load_for_later(dt_bias + head),
          least,
          greatest,
          load_for_later(d + head),
          head};
}

}  // namespace tl
