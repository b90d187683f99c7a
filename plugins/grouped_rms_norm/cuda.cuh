// GroupedRmsNorm: the RMS norm of each of TL_GROUPS parts of a row, perhaps with SiLU of a gate before or after it.
//
// Bytes: 6 * features a row. FLOPs: about 2 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us. One
// block a group, whose elements stay in registers: a thread requests all of its pairs before it uses any, and the
// weights before the previous kernel ends. Launch: grid = (rows, groups), TL_THREADS threads. Macros: TL_FEATURES,
// TL_GROUPS, TL_GATE_FIRST (0 or 1), TL_GATE_PITCH (elements from a row of the gate to the next, even; 0: there is no
// gate), TL_THREADS (a multiple of 32), TL_FP16. Groups have an even number of features.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kPairs = TL_FEATURES / TL_GROUPS / 2;      // of a group
constexpr int kOfThread = ceil_div(kPairs, TL_THREADS);  // pairs
static_assert(TL_FEATURES % (2 * TL_GROUPS) == 0 && TL_GATE_PITCH % 2 == 0 && TL_THREADS % 32 == 0);

// Calls use(i, pair) for the thread's i-th pair of a group, which is number `pair` in the group.
template <typename Use>
__device__ __forceinline__ void for_each_pair(const Use& use) {
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int pair = threadIdx.x + i * TL_THREADS;
    if (pair < kPairs) use(i, pair);
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    grouped_rms_norm(tl::u32* y, const tl::u32* x, const tl::u32* gate, const float* weight, float epsilon) {
  using namespace tl;
  const u64 first = (static_cast<u64>(blockIdx.x) * TL_GROUPS + blockIdx.y) * kPairs;
  gate += static_cast<u64>(blockIdx.x) * (TL_GATE_PITCH / 2) + blockIdx.y * kPairs;
  const float2* of_group = reinterpret_cast<const float2*>(weight) + blockIdx.y * kPairs;
  float2 weights[kOfThread], seen[kOfThread];
  u32 pairs[kOfThread], gates[kOfThread];
  for_each_pair([&](int i, int pair) { weights[i] = of_group[pair]; });
  wait_for_previous_kernel();
  allow_next_kernel();
  for_each_pair([&](int i, int pair) {
    pairs[i] = x[first + pair];
    if (TL_GATE_PITCH > 0) gates[i] = gate[pair];
  });
  float squares = 0.0f;
  for_each_pair([&](int i, int) {
    seen[i] = unpack2(pairs[i]);
    if (TL_GATE_PITCH > 0) {
      const float2 of_gate = unpack2(gates[i]), factor = make_float2(silu(of_gate.x), silu(of_gate.y));
      float2& gated = TL_GATE_FIRST ? seen[i] : weights[i];
      gated = make_float2(gated.x * factor.x, gated.y * factor.y);
    }
    squares += seen[i].x * seen[i].x + seen[i].y * seen[i].y;
  });
  const float inverse = rsqrtf(block_sum(squares) / (2 * kPairs) + epsilon);
  for_each_pair([&](int i, int pair) {
    y[first + pair] = pack2(seen[i].x * inverse * weights[i].x, seen[i].y * inverse * weights[i].y);
  });
}
