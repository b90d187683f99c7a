// Three warps beside the producer of prefill_wgmma.cuh turn tiles of E4M3 into tiles of float16, as wgmma reads them.
#pragma once

#include "cuda/fp8.cuh"
#include "paged_attention/prefill_producer.cuh"

namespace tl {

// A piece of 16 elements, which becomes two. Of eight lanes with the pieces of 128 elements, the later four store their
// second one first, so that all eight are in different banks.
struct WidenedPiece {
  using Raw = CacheLayout<kDim, 1>;
  static constexpr int kPieces = kDim / 16, kPerRun = Raw::kRunBytes / 16, kWidePerRun = Layout::kRunBytes / 16;
  int token, piece;
  u32 bytes[4];

  __device__ __forceinline__ void load(u32 from, int number) {
    token = number / kPieces;
    piece = number % kPieces;
    const int row = token % kGroupTokens, within = Raw::kSwizzled ? piece % kPerRun ^ row : 0;
    const u32 at = from + token / kGroupTokens * Raw::kGroupBytes + piece / kPerRun * Raw::kMatrixBytes +
                   row * Raw::kRunBytes + within * 16;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(bytes[0]), "=r"(bytes[1]), "=r"(bytes[2]), "=r"(bytes[3])
                 : "r"(at)
                 : "memory");
  }
  __device__ __forceinline__ void store(u32 to) const {
    const int row = token % kGroupTokens, later = piece / 4 % 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int half = i ^ later, target = piece * 2 + half;
      const int place = Layout::kSwizzled ? target % kWidePerRun ^ row : 0;
      const u32 at = to + token / kGroupTokens * Layout::kGroupBytes + target / kWidePerRun * Layout::kMatrixBytes +
                     row * Layout::kRunBytes + place * 16;
      u32 wide[4];
      widen_e4m3(half ? bytes[2] : bytes[0], wide[0], wide[1]);
      widen_e4m3(half ? bytes[3] : bytes[1], wide[2], wide[3]);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(wide[0]), "r"(wide[1]), "r"(wide[2]),
                   "r"(wide[3])
                   : "memory");
    }
  }
};

// Widens stage after stage into the tile that its order names, until an order says that there are no more.
__device__ __forceinline__ void widen_tiles(const Shared& shared) {
  constexpr int kThreadsHere = kWideningWarps * 32, kPieces = kStep * WidenedPiece::kPieces, kBatch = 4;
  const int thread = threadIdx.x - 32, lane = threadIdx.x % 32;
  for (int use = 0;; ++use) {
    barrier_wait(shared.landed(use), Shared::raw_parity(use));
    int kind, t;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(kind), "=r"(t) : "r"(shared.order(use)) : "memory");
    if (kind == kNoKind) return;
    const bool is_key = kind == kKeys;
    const u32 empty = is_key ? shared.empty<kKeys>(t) : shared.empty<kValues>(t);
    barrier_wait(empty, (is_key ? Shared::parity<kKeys>(t) : Shared::parity<kValues>(t)) ^ 1);
    const u32 from = shared.raw(use), to = is_key ? shared.keys(t) : shared.values(t);
#pragma unroll 1
    for (int first = thread; first < kPieces; first += kBatch * kThreadsHere) {
      WidenedPiece pieces[kBatch];  // several loads are under way at a time
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * kThreadsHere < kPieces) pieces[i].load(from, first + i * kThreadsHere);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (first + i * kThreadsHere < kPieces) pieces[i].store(to);
      }
    }
    fence_async_copies();
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(is_key ? shared.full<kKeys>(t) : shared.full<kValues>(t));
      barrier_arrive(shared.widened(use));
    }
  }
}

}  // namespace tl
