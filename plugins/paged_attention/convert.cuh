// Converts bytes of the cache to float16, in which attention multiplies them.
#pragma once

#include "cuda/int8.cuh"
#include "paged_attention/cache.cuh"

namespace tl {

static_assert(!kByteKeys || TL_FP16, "attention over keys of bytes computes in float16");

// Converts bytes 0 and 1 of `bytes` to the elements of `first`, bytes 2 and 3 to those of `second`, exactly.
__device__ __forceinline__ void convert_bytes(u32 bytes, u32& first, u32& second) {
  if constexpr (kValueType == RowType::kInt8) {
    convert_int8<true>(bytes, first, second);
  } else {
    convert_e4m3(bytes, first, second);
  }
}

}  // namespace tl
