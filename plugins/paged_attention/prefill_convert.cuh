// Three warps in the producer's warpgroup of prefill_wgmma.cuh, which convert tiles of bytes to tiles of float16 for
// wgmma.
#pragma once

#include "paged_attention/convert.cuh"
#include "paged_attention/prefill_producer.cuh"

namespace tl {

// The share of a lane in kTokens tokens: pieces of 16 bytes, each of which becomes two pieces of float16. All are at
// constant offsets from the first token. Of eight lanes that hold 128 elements, the last four store their second piece
// first, which avoids bank conflicts.
struct LaneShare {
  using Raw = CacheLayout<kDim, 1>;
  static constexpr int kPieces = kDim / 16, kPerRun = Raw::kRunBytes / 16, kWidePerRun = Layout::kRunBytes / 16;
  static constexpr int kGroups = kPieces % 4 == 0 ? 1 : 2, kTokens = kGroups * kGroupTokens;
  static constexpr int kCount = kTokens * kPieces / 32;  // pieces of a lane
  static_assert(!kByteValues || kTokens * kPieces % 32 == 0);
  u32 from[kCount], to[kCount][2];
  bool later[kCount];

  __device__ __forceinline__ explicit LaneShare(int lane) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const int token = (lane + n * 32) / kPieces, piece = (lane + n * 32) % kPieces, row = token % kGroupTokens;
      later[n] = piece / 4 % 2;
      from[n] = token / kGroupTokens * Raw::kGroupBytes + piece / kPerRun * Raw::kMatrixBytes + row * Raw::kRunBytes +
                (Raw::kSwizzled ? piece % kPerRun ^ row : 0) * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int target = piece * 2 + (i ^ later[n]), place = Layout::kSwizzled ? target % kWidePerRun ^ row : 0;
        to[n][i] = token / kGroupTokens * Layout::kGroupBytes + target / kWidePerRun * Layout::kMatrixBytes +
                   row * Layout::kRunBytes + place * 16;
      }
    }
  }
  __device__ __forceinline__ void convert(u32 raw, u32 tile) const {
    u32 bytes[kCount][4];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bytes[n][0]), "=r"(bytes[n][1]), "=r"(bytes[n][2]), "=r"(bytes[n][3])
                   : "r"(raw + from[n])
                   : "memory");
    }
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool second = later[n] != (i == 1);
        u32 wide[4];
        convert_bytes(second ? bytes[n][2] : bytes[n][0], wide[0], wide[1]);
        convert_bytes(second ? bytes[n][3] : bytes[n][1], wide[2], wide[3]);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(tile + to[n][i]), "r"(wide[0]), "r"(wide[1]),
                     "r"(wide[2]), "r"(wide[3])
                     : "memory");
      }
    }
  }
};

// Converts stage after stage into the tile that its order names, until an order says that there are no more.
__device__ __forceinline__ void convert_tiles(const Shared& shared) {
  constexpr u32 kRawBytes = LaneShare::kTokens * CacheLayout<kDim, 1>::kTokenBytes;
  constexpr u32 kWideBytes = LaneShare::kTokens * Layout::kTokenBytes;
  const int warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32;
  const LaneShare mine(lane);
  for (int use = 0;; ++use) {
    barrier_wait(shared.landed(use), Shared::raw_parity(use));
    int kind, t;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(kind), "=r"(t) : "r"(shared.order(use)) : "memory");
    if (kind == kNoKind) return;
    const bool is_key = kByteKeys && kind == kKeys;
    const u32 empty = is_key ? shared.empty<kKeys>(t) : shared.empty<kValues>(t);
    barrier_wait(empty, (is_key ? Shared::parity<kKeys>(t) : Shared::parity<kValues>(t)) ^ 1);
    const u32 from = shared.raw(use), to = is_key ? shared.keys(t) : shared.values(t);
#pragma unroll 2
    for (int i = warp; i < kStep / LaneShare::kTokens; i += kConvertingWarps) {
      mine.convert(from + i * kRawBytes, to + i * kWideBytes);
    }
    fence_async_copies();
    __syncwarp();
    if (lane == 0) barrier_arrive(is_key ? shared.full<kKeys>(t) : shared.full<kValues>(t));
    if (releasing_lane(lane)) barrier_arrive(shared.converted(use));
  }
}

}  // namespace tl
