// GatedRmsNorm: the RMS norm of each group of TL_GROUP features, times SiLU of a gate or, if TL_SIGMOID, its sigmoid.
//
// Bytes: 6 * features a row. FLOPs: about 2 a byte. Floor: bytes / bandwidth; of few rows latency, about 2 us. TL_LANES
// lanes of a warp have a group, whose rows of x and of the gate they request at once, in vectors of TL_VECTOR elements,
// so that a multiprocessor has 64 KB in flight. Launch: grid = (rows, groups of a row / those of a block), TL_THREADS
// threads. Macros: TL_FEATURES, TL_GATE_PITCH (elements from a row of the gate to the next), TL_GROUP, TL_VECTOR (2 or
// 8, of which the pitch and TL_GROUP are multiples), TL_LANES (a power of two up to 32), TL_THREADS (a multiple of 32),
// TL_SIGMOID, TL_FP16.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"

namespace tl {

constexpr int kVectors = TL_GROUP / TL_VECTOR, kCount = ceil_div(kVectors, TL_LANES);
constexpr int kGroups = TL_FEATURES / TL_GROUP, kPitch = TL_GATE_PITCH / TL_VECTOR;
static_assert(TL_GROUP % TL_VECTOR == 0 && TL_GATE_PITCH % TL_VECTOR == 0 && TL_FEATURES % TL_GROUP == 0);
static_assert(TL_THREADS % 32 == 0 && 32 % TL_LANES == 0);

struct alignas(2 * TL_VECTOR) Vector {
  u32 pairs[TL_VECTOR / 2];
};
struct alignas(min_of(4 * TL_VECTOR, 16)) Weights {
  float2 pairs[TL_VECTOR / 2];
};

__device__ __forceinline__ float factor_of(float gate) { return TL_SIGMOID ? sigmoid(gate) : silu(gate); }

// The sum over the lanes of a group.
__device__ __forceinline__ float group_sum(float value) {
#pragma unroll
  for (int offset = TL_LANES / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Calls use(i, vector) for the lane's i-th vector of a group, which is number `vector` in the group.
template <typename Use>
__device__ __forceinline__ void for_each_vector(const Use& use) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = i * TL_LANES + threadIdx.x % TL_LANES;
    if (kVectors % TL_LANES == 0 || vector < kVectors) use(i, vector);
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    gated_rms_norm(tl::Vector* y, const tl::Vector* x, const tl::Vector* gate, const float* weight, float epsilon) {
  using namespace tl;
  Weights weights[kCount];
  for_each_vector([&](int i, int vector) { weights[i] = reinterpret_cast<const Weights*>(weight)[vector]; });
  wait_for_previous_kernel();
  allow_next_kernel();
  const int group = blockIdx.y * (TL_THREADS / TL_LANES) + threadIdx.x / TL_LANES;
  const bool exists = group < kGroups;
  const u64 first = (static_cast<u64>(blockIdx.x) * kGroups + group) * kVectors;
  gate += static_cast<u64>(blockIdx.x) * kPitch + group * kVectors;
  Vector vectors[kCount] = {}, gates[kCount] = {};
  for_each_vector([&](int i, int vector) {
    if (!exists) return;
    vectors[i] = x[first + vector];
    gates[i] = gate[vector];
  });
  float squares = 0.0f;
  for_each_vector([&](int i, int) {
#pragma unroll
    for (int j = 0; j < TL_VECTOR / 2; ++j) {
      const float2 pair = unpack2(vectors[i].pairs[j]);
      squares += pair.x * pair.x + pair.y * pair.y;
    }
  });
  const float inverse = rsqrtf(group_sum(squares) / TL_GROUP + epsilon);
  if (!exists) return;
  for_each_vector([&](int i, int vector) {
#pragma unroll
    for (int j = 0; j < TL_VECTOR / 2; ++j) {
      const float2 pair = unpack2(vectors[i].pairs[j]), of_gate = unpack2(gates[i].pairs[j]);
      const float2 scale = weights[i].pairs[j];
      vectors[i].pairs[j] =
          pack2(pair.x * inverse * scale.x * factor_of(of_gate.x), pair.y * inverse * scale.y * factor_of(of_gate.y));
    }
    y[first + vector] = vectors[i];
  });
}
