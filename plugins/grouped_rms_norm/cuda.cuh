// GroupedRmsNorm: the RMS norm of each of TL_GROUPS parts of a row, with SiLU of a gate before or after it.
//
// Bytes: 6 * features a row. FLOPs: about 2 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us. One
// block a group, whose elements stay in registers. Launch: grid = (rows, groups), TL_THREADS threads. Macros:
// TL_FEATURES, TL_GROUPS, TL_GATE_FIRST (0 or 1), TL_GATE_PITCH (elements from a row of the gate to the next, even),
// TL_THREADS (a multiple of 32), TL_FP16. Groups have an even number of features.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kPairs = TL_FEATURES / TL_GROUPS / 2;      // of a group
constexpr int kOfThread = ceil_div(kPairs, TL_THREADS);  // pairs
static_assert(TL_FEATURES % (2 * TL_GROUPS) == 0 && TL_GATE_PITCH % 2 == 0 && TL_THREADS % 32 == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    grouped_rms_norm(tl::u32* y, const tl::u32* x, const tl::u32* gate, const float* weight, float epsilon) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 first = (static_cast<u64>(blockIdx.x) * TL_GROUPS + blockIdx.y) * kPairs;
  gate += static_cast<u64>(blockIdx.x) * (TL_GATE_PITCH / 2) + blockIdx.y * kPairs;
  const float2* weights = reinterpret_cast<const float2*>(weight) + blockIdx.y * kPairs;
  float2 seen[kOfThread], gates[kOfThread];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int pair = threadIdx.x + i * TL_THREADS;
    if (pair >= kPairs) break;
    seen[i] = unpack2(x[first + pair]);
    gates[i] = unpack2(gate[pair]);
    gates[i] = make_float2(silu(gates[i].x), silu(gates[i].y));
    if (TL_GATE_FIRST) seen[i] = make_float2(seen[i].x * gates[i].x, seen[i].y * gates[i].y);
    squares += seen[i].x * seen[i].x + seen[i].y * seen[i].y;
  }
  const float inverse = rsqrtf(block_sum(squares) / (2 * kPairs) + epsilon);
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int pair = threadIdx.x + i * TL_THREADS;
    if (pair >= kPairs) break;
    const float2 scale = weights[pair], last = TL_GATE_FIRST ? make_float2(1.0f, 1.0f) : gates[i];
    y[first + pair] = pack2(seen[i].x * inverse * scale.x * last.x, seen[i].y * inverse * scale.y * last.y);
  }
}
