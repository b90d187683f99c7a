// Asynchronous copies, their barriers, and programmatic dependent launch.
//
// From sm_90 on, rows are copied by bulk copies (one instruction per row, no registers) that complete on an mbarrier.
// On older devices the same interface uses 16-byte cp.async by the lanes of the producer warp, arriving on the same
// mbarrier.
#pragma once

#include "cuda/mma.cuh"

namespace tl {

#define TL_HAS_BULK_COPY (__CUDA_ARCH__ >= 900)

// Makes everything that the previous kernel of the stream wrote visible. Every kernel waits, even one that reads none
// of it: only then does the end of one kernel imply the end of all kernels before it.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel of the stream start while this one runs. It orders no memory accesses; but since kernels call it
// after their own wait, a kernel may read before its wait whatever was written two kernels earlier. Only the short
// kernels low_rank, rms_norm, combine and combine_norm call it before their wait, so that the products after them can
// start and prefetch weights: the kernels that follow them read nothing before their wait but weights, the step's
// inputs (of which cache_slots writes some, the first kernel of a program), and states, which earlier steps wrote.
__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes barrier_init visible to the copy engine. A __syncthreads() must follow to make it visible to other threads.
__device__ __forceinline__ void barrier_init_fence() {
#if TL_HAS_BULK_COPY
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

#ifndef TL_RACECHECK
#define TL_RACECHECK 0
#endif

// The lanes that say at a barrier that their warp has read a stage, after a __syncwarp(): one for the warp; racecheck
// does not understand __syncwarp(), so under it all lanes.
constexpr int kWarpReleases = TL_RACECHECK ? 32 : 1;
__device__ __forceinline__ bool releasing_lane(int lane) { return TL_RACECHECK || lane == 0; }
__device__ __forceinline__ void release_stage(u32 empty, int lane) {
  __syncwarp();
  if (releasing_lane(lane)) barrier_arrive(empty);
}

__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra retry;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nretry:\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra retry;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// Whether barrier_wait() would return at once. What a thread does with the answer may come much later.
__device__ __forceinline__ bool barrier_test(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// A cache policy for weights: they are read once per step, so they are evicted from L2 before activations and the KV
// cache.
__device__ __forceinline__ u64 evict_first_policy() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Orders this thread's writes to shared memory before bulk copies and wgmma that follow the next barrier.
__device__ __forceinline__ void fence_async_copies() {
#if TL_HAS_BULK_COPY
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void store_zeros16(u32 target) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(target), "r"(0) : "memory");
}

// One warp fills a stage: stage_begin() with the number of bytes to come, stage_copy_rows() once per matrix, then
// stage_commit(). `full`, a barrier with kFullArrivals arrivals, completes when every byte has arrived.
#if TL_HAS_BULK_COPY
constexpr int kFullArrivals = 1;
#else
constexpr int kFullArrivals = 32;
#endif

// Returns true in exactly one lane of a full warp. Unlike `lane == 0`, it tells the compiler that there is only one:
// the operands of bulk copies are uniform registers, and for unknown lanes the compiler emits a serial loop of about 60
// cycles per copy (measured on an H200: a copy of 1 KB every 38 ns, 3.5 TB/s).
__device__ __forceinline__ bool elect_one() {
#if __CUDA_ARCH__ >= 900
  u32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
#else
  return threadIdx.x % 32 == 0;
#endif
}

// A shorter sequence for copies of contiguous ranges: `if (copying_lane()) { expect_bytes(); copy_bytes() ...; }`, then
// stage_commit(). The condition is true in one lane on sm_90, and in all lanes on older devices.
__device__ __forceinline__ bool copying_lane() { return !TL_HAS_BULK_COPY || elect_one(); }

// Arrives at barrier `full` and adds `bytes` to the bytes that it waits for, before or after they arrive. Called by one
// thread. Does nothing on devices older than sm_90.
__device__ __forceinline__ void expect_bytes(u32 full, u32 bytes) {
#if TL_HAS_BULK_COPY
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(full),
               "r"(bytes)
               : "memory");
#endif
}

// Copies `bytes` bytes, a multiple of 16, from global to shared memory.
__device__ __forceinline__ void copy_bytes(u32 target, const void* source, u32 bytes, u32 full, int lane) {
  const u64 from = __cvta_generic_to_global(source);
#if TL_HAS_BULK_COPY
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(from), "r"(bytes), "r"(full)
               : "memory");
#else
  for (u32 offset = lane * 16; offset < bytes; offset += 32 * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + offset), "l"(from + offset) : "memory");
  }
#endif
}

__device__ __forceinline__ void stage_begin(u32 full, u32 bytes) {
#if TL_HAS_BULK_COPY
  if (elect_one()) expect_bytes(full, bytes);
  __syncwarp();
#endif
}

// Copies rows of `bytes` bytes, a multiple of 16. Row r of `source`, with a stride of `stride` bytes, goes to `target +
// r * pitch`.
template <int kRows>
__device__ __forceinline__ void stage_copy_rows(u32 target, u32 pitch, const void* source, u32 stride, int rows,
                                                u32 bytes, u32 full, int lane, u64 policy) {
  const u64 from = __cvta_generic_to_global(source);
#if TL_HAS_BULK_COPY
  if (elect_one()) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
          "%4;" ::"r"(target + r * pitch),
          "l"(from + static_cast<u64>(r) * stride), "r"(bytes), "r"(full), "l"(policy)
          : "memory");
    }
  }
#else
  for (int r = 0; r < rows; ++r) {
    for (u32 offset = lane * 16; offset < bytes; offset += 32 * 16) {
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(target + r * pitch + offset),
                   "l"(from + static_cast<u64>(r) * stride + offset), "l"(policy)
                   : "memory");
    }
  }
#endif
}

__device__ __forceinline__ void stage_commit(u32 full) {
#if !TL_HAS_BULK_COPY
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
#endif
}

// The calling thread copies 16 bytes from global to shared memory. If `valid` is false, it reads nothing and writes
// zeros.
__device__ __forceinline__ void copy16(u32 target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(__cvta_generic_to_global(source)),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kPending` of this thread's latest groups are still in flight.
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A position in a ring of kStages stages in shared memory from `base` on: the number of the stage, and the parity of
// the number of rounds so far.
template <int kStages>
struct RingPlace {
  u32 base;
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace tl
