// Combines partial sums that several blocks have made of an item's keys.
#pragma once

#include "cuda/softmax.cuh"
#include "latent_attention/spans.cuh"

namespace tl {

// The layout of a block's partial result: sums of each row, then maxima, then totals.
#ifdef TL_MAX_ITEMS
constexpr int kPartialRows = kItemTokens * kBlockHeads;
#else
constexpr int kPartialRows = kBlockHeads;
#endif
constexpr int kMaximumOffset = kPartialRows * kLatentDim, kPartialFloats = kPartialRows * (kLatentDim + 2);

// Loads a counter with acquire semantics: what other blocks wrote before they counted is visible afterwards.
__device__ __forceinline__ u32 load_acquire(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(__cvta_generic_to_global(from)) : "memory");
  return value;
}

// Four columns of a row.
struct PartSums {
  float maximum = kNoMaximum, total = 0.0f;
  float sums[4] = {};

  __device__ __forceinline__ void add(float other_maximum, float other_total, const float (&others)[4]) {
    const float next = fmaxf(maximum, other_maximum);
    const float own = exp2_fast(maximum - next), other = exp2_fast(other_maximum - next);
    maximum = next;
    total = total * own + other_total * other;
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = sums[i] * own + others[i] * other;
  }
  __device__ __forceinline__ void add(const float* part, int r, int column) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(part + r * kLatentDim + column));
    const float* state = part + kMaximumOffset + r;
    const float others[4] = {four.x, four.y, four.z, four.w};
    add(__ldcg(state), __ldcg(state + kPartialRows), others);
  }
  __device__ __forceinline__ void put(u16* to) const {
    const float inverse = 1.0f / total;
    *reinterpret_cast<uint2*>(to) =
        make_uint2(pack2(sums[0] * inverse, sums[1] * inverse), pack2(sums[2] * inverse, sums[3] * inverse));
  }
};

// The lanes of a warp as a grid: `width` groups of four neighbouring columns by 32 / width parts, which are at least as
// many as there are partial results, or 32.
struct PartLanes {
  int width = 32, column, part;

  __device__ __forceinline__ explicit PartLanes(int count) {
    while (width > 1 && parts() < count) width /= 2;
    column = threadIdx.x % 32 % width;
    part = threadIdx.x % 32 / width;
  }
  __device__ __forceinline__ int parts() const { return 32 / width; }
  // Adds up a column's sums over lanes.
  __device__ __forceinline__ void add_up(PartSums& sums) const {
    for (int bits = width; bits < 32; bits *= 2) {
      const float maximum = __shfl_xor_sync(0xffffffffu, sums.maximum, bits);
      const float total = __shfl_xor_sync(0xffffffffu, sums.total, bits);
      float others[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) others[i] = __shfl_xor_sync(0xffffffffu, sums.sums[i], bits);
      sums.add(maximum, total, others);
    }
  }
};

}  // namespace tl
