// RotaryTable: cos, sin = scale * cos, sin(position * inv_freq), float32. Once per step, for all layers.
//
// Bytes: 4 * head_dim a token. FLOPs: the range reduction of large angles, some hundreds per angle. Floor: latency,
// about 2 us. Launch: grid = tokens, TL_HALF_DIM threads (the precise cosf and sinf: positions reach 10^6 radians).
// Macros: TL_HALF_DIM.
#include "cuda/async.cuh"

extern "C" __global__ void rotary_table(float* cos, float* sin, const int* position_ids, const float* inv_freq,
                                        float scale) {
  tl::wait_for_previous_kernel();
  tl::allow_next_kernel();
  const int token = blockIdx.x, i = threadIdx.x;
  const float angle = static_cast<float>(position_ids[token]) * inv_freq[i];
  cos[token * TL_HALF_DIM + i] = scale * cosf(angle);
  sin[token * TL_HALF_DIM + i] = scale * sinf(angle);
}
