// GatedRmsNorm: the RMS norm of each group of TL_GROUP features, times SiLU of a gate or, if TL_SIGMOID, its sigmoid.
//
// Bytes: 6 * features a row. FLOPs: about 2 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us. One warp
// a group, whose rows of x and of the gate it requests at once. Launch: grid = (rows, groups of a row / warps),
// TL_THREADS threads. Macros: TL_FEATURES, TL_GATE_PITCH (elements from a row of the gate to the next, even), TL_GROUP
// (even), TL_THREADS (a multiple of 32), TL_SIGMOID, TL_FP16.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

__device__ __forceinline__ float factor_of(float gate) { return TL_SIGMOID ? sigmoid(gate) : silu(gate); }

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    gated_rms_norm(tl::u32* y, const tl::u32* x, const tl::u32* gate, const float* weight, float epsilon) {
  using namespace tl;
  constexpr int kPairs = TL_GROUP / 2, kGroups = TL_FEATURES / TL_GROUP;
  static_assert(TL_GROUP % 2 == 0 && TL_GATE_PITCH % 2 == 0 && TL_FEATURES % TL_GROUP == 0 && TL_THREADS % 32 == 0);
  constexpr int kOfLane = ceil_div(kPairs, 32);
  const int group = blockIdx.y * (TL_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  float2 weights[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int pair = i * 32 + lane;
    if (pair < kPairs) weights[i] = make_float2(weight[2 * pair], weight[2 * pair + 1]);
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  if (group >= kGroups) return;
  const u64 first = (static_cast<u64>(blockIdx.x) * kGroups + group) * kPairs;
  gate += static_cast<u64>(blockIdx.x) * (TL_GATE_PITCH / 2) + group * kPairs;
  u32 pairs[kOfLane], gates[kOfLane];
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int pair = i * 32 + lane;
    pairs[i] = pair < kPairs ? x[first + pair] : 0;
    gates[i] = pair < kPairs ? gate[pair] : 0;
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const float2 pair = unpack2(pairs[i]);
    squares += pair.x * pair.x + pair.y * pair.y;
  }
  const float inverse = rsqrtf(warp_sum(squares) / TL_GROUP + epsilon);
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    if (i * 32 + lane >= kPairs) break;
    const float2 pair = unpack2(pairs[i]), gate_pair = unpack2(gates[i]);
    y[first + i * 32 + lane] = pack2(pair.x * inverse * weights[i].x * factor_of(gate_pair.x),
                                     pair.y * inverse * weights[i].y * factor_of(gate_pair.y));
  }
}
