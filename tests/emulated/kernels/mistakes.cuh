// A pipeline of one stage with the mistake that TL_MISTAKE names, if any: the emulator must find it.
//
// A warp copies kTiles tiles of 32 words to shared memory, another adds 1 to each word. Launch: a block of 64 threads.
#include "cuda/async.cuh"

enum Mistake { kNone, kNoWait, kEarlyRelease, kWrongParity, kExtraArrival, kTooFar, kOutside, kDivergence, kNoBarrier };

constexpr int kTiles = 8, kTileBytes = 128;

extern "C" __global__ void mistakes(unsigned* output, const unsigned* input) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  const int lane = threadIdx.x % 32;
  const u32 data = shared_address(memory), full = data + kTileBytes, empty = full + 8;
  if (threadIdx.x == 0 && TL_MISTAKE != kNoBarrier) {
    barrier_init(full, 1);
    barrier_init(empty, 1);
  }
  __syncthreads();
  for (int tile = 0; tile < kTiles; ++tile) {
    const u32 parity = tile % 2;
    if (threadIdx.x < 32) {
      barrier_wait(empty, parity ^ (TL_MISTAKE == kWrongParity ? 0 : 1));
      if (!elect_one()) continue;
      expect_bytes(full, kTileBytes);
      const unsigned* from = input + tile * 32 + (TL_MISTAKE == kTooFar ? kTileBytes : 0);
      copy_bytes(data + (TL_MISTAKE == kOutside ? 4096 : 0), reinterpret_cast<const u16*>(from), kTileBytes, full,
                 lane);
      if (TL_MISTAKE == kExtraArrival) barrier_arrive(full);
    } else {
      if (TL_MISTAKE != kNoWait) barrier_wait(full, parity);
      if (TL_MISTAKE == kEarlyRelease && lane == 0) barrier_arrive(empty);
      if (TL_MISTAKE != kDivergence || lane > 0) __syncwarp();
      output[tile * 32 + lane] = __shfl_sync(0xffffffffu, reinterpret_cast<const unsigned*>(memory)[lane], lane) + 1;
      __syncwarp();
      if (TL_MISTAKE != kEarlyRelease && lane == 0) barrier_arrive(empty);
    }
  }
}
