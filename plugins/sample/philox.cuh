// Philox4x32-10, a counter-based generator (Salmon et al., SC11, section 4.3), keyed as in csrc/sampling/philox.h: a
// token drawn here and one drawn on the host get the same number.
#pragma once

#include "cuda/types.cuh"

namespace tl {

// Uniform in [0, 1) with 53 bits for the token_index-th token of sequence sequence_index of a request.
__device__ __forceinline__ double token_uniform(u32 seed_low, u32 seed_high, u32 token_index, u32 sequence_index) {
  u32 c0 = token_index, c1 = 0, c2 = sequence_index, c3 = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 a = static_cast<u64>(0xD2511F53u) * c0, b = static_cast<u64>(0xCD9E8D57u) * c2;
    c0 = static_cast<u32>(b >> 32) ^ c1 ^ (seed_low + round * 0x9E3779B9u);
    c2 = static_cast<u32>(a >> 32) ^ c3 ^ (seed_high + round * 0xBB67AE85u);
    c1 = static_cast<u32>(b);
    c3 = static_cast<u32>(a);
  }
  return static_cast<double>((static_cast<u64>(c1) << 32 | c0) >> 11) * 0x1p-53;
}

}  // namespace tl
