// Where decode attention keeps the queries of a tile's rows: a lane's part of each octet and 16 elements is two words,
// the operand of a product.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// A lane's part of the queries, in registers.
template <int kDim, int kOctets>
struct KeptQuery {
  u32 words[kOctets][kDim / 16][2] = {};

  __device__ __forceinline__ void put(int octet, int k, u32 first, u32 second) {
    words[octet][k][0] = first;
    words[octet][k][1] = second;
  }
  // Called for a row of an octet that has no query. It is zero, or that of a pair before; no result of it is stored.
  __device__ __forceinline__ void skip(int) {}
  __device__ __forceinline__ uint2 get(int octet, int k) const {
    return make_uint2(words[octet][k][0], words[octet][k][1]);
  }
};

// The same in shared memory, because many octets leave no registers for it. No lane reads what another has written.
template <int kDim, int kOctets>
struct SharedQuery {
  static constexpr int kFloats = kOctets * kDim / 16 * 64;
  uint2* words;  // of the lane: those of an octet's 16 elements are 32 apart

  __device__ __forceinline__ SharedQuery(float* of_warp, int lane) : words(reinterpret_cast<uint2*>(of_warp) + lane) {}
  __device__ __forceinline__ void put(int octet, int k, u32 first, u32 second) {
    words[(octet * (kDim / 16) + k) * 32] = make_uint2(first, second);
  }
  // Sets a row of an octet that has no query to zero: the pair before may have had one.
  __device__ __forceinline__ void skip(int octet) {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) put(octet, k, 0, 0);
  }
  __device__ __forceinline__ uint2 get(int octet, int k) const { return words[(octet * (kDim / 16) + k) * 32]; }
};

}  // namespace tl
