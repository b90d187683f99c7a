// The shared memory of latent attention, and the producer warp that loads tiles of the caches.
//
// Shared memory: queries in column blocks of 64 rows (cuda/wgmma.cuh) | stages: latents, then keys, as in the caches |
// weights of a tile, 64 rows of 64 | a factor for each row | barriers.
#pragma once

#include "cuda/wgmma.cuh"
#include "latent_attention/spans.cuh"

namespace tl {

using LatentCopy = TokenCopy<kLatentDim, TL_PAGE, kStep>;
using KeyCopy = TokenCopy<kRotaryDim, TL_PAGE, kStep>;
constexpr int kStages = 2, kConsumers = 2, kGroupThreads = 128, kConsumerThreads = kConsumers * kGroupThreads;
constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;  // per thread, which has 168 at first
constexpr u32 kQueryBytes = kItemRows * kQueryDim * 2, kStageBytes = LatentCopy::kBytes + KeyCopy::kBytes;
constexpr u32 kStageOffset = kQueryBytes, kWeightOffset = kStageOffset + kStages * kStageBytes;
constexpr u32 kFactorOffset = kWeightOffset + kItemRows * kStep * 2, kBarrierOffset = kFactorOffset + kItemRows * 4;
constexpr u32 kAttendBytes = kBarrierOffset + kStages * 16;

struct Shared {
  u32 base;

  __device__ __forceinline__ u32 latents(int use) const { return base + kStageOffset + use % kStages * kStageBytes; }
  __device__ __forceinline__ u32 keys(int use) const { return latents(use) + LatentCopy::kBytes; }
  __device__ __forceinline__ u32 weights() const { return base + kWeightOffset; }
  // The barriers of a use of a stage: full when its tile has arrived, empty when all consumer warps are done with it.
  __device__ __forceinline__ u32 full(int use) const { return base + kBarrierOffset + use % kStages * 16; }
  __device__ __forceinline__ u32 empty(int use) const { return full(use) + 8; }
  __device__ __forceinline__ static u32 parity(int use) { return use / kStages % 2; }

  __device__ __forceinline__ void init() const {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full(i), kFullArrivals);
      barrier_init(empty(i), kConsumerThreads / 32);
    }
    barrier_init_fence();
  }
};

// The producer: one warp.
struct Producer {
  const Sequences& sequences;
  const u16* keys;
  const u16* latents;
  Shared shared;
  int lane;
  int use = 0;

  __device__ __forceinline__ void bring(const Span& span, int tile) {
    const int token = tile * kStep, present = min_of(span.keys() - token, kStep);
    const int* table = sequences.block_tables + static_cast<u64>(span.seq) * sequences.max_blocks;
    int blocks[LatentCopy::kPages];
#pragma unroll
    for (int page = 0; page < LatentCopy::kPages; ++page) {
      const int at = token + page * TL_PAGE;
      blocks[page] = at < span.keys() ? table[at / TL_PAGE] : 0;
    }
    const LatentCopy of_latents{0, token, present, blocks, lane};
    const KeyCopy of_keys{0, token, present, blocks, lane};
    barrier_wait(shared.empty(use), Shared::parity(use) ^ 1);
    of_latents.clear_behind(shared.latents(use));
    if (copying_lane()) {
      expect_bytes(shared.full(use), of_latents.value_bytes() + of_keys.key_bytes());
      of_latents.values(shared.latents(use), latents, shared.full(use));
      of_keys.keys(shared.keys(use), keys, shared.full(use));
    }
    __syncwarp();
    ++use;
  }
  // The step's own tokens may be results of the previous kernel; all others are from earlier steps.
  __device__ __forceinline__ void run(Spans spans) {
    bool has_waited = false;
    const auto wait = [&] {
      if (has_waited) return;
      wait_for_previous_kernel();
      allow_next_kernel();
      has_waited = true;
    };
    for (Span span; spans.next(span);) {
      const int old = sequences.past_lens[span.seq] / kStep;  // tiles that contain no tokens of the step
      for (int tile = span.begin; tile < span.end; ++tile) {
        if (tile >= old) wait();
        bring(span, tile);
      }
    }
    wait();
  }
};

}  // namespace tl
