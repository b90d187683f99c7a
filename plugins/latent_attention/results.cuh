// Stores the sums of latent attention: as means of latents or, for items that several blocks share, in `partials`,
// which these blocks then combine.
#pragma once

#include "latent_attention/combine.cuh"
#include "latent_attention/tiles.cuh"

namespace tl {

constexpr int kHalfDim = kLatentDim / 2;  // columns of a warpgroup

// Named barriers. kAll: all consumer threads synchronize. kLeft: the first warpgroup has left data for the second.
// kTaken: the second has read it.
constexpr int kAll = 1, kLeft = 2, kTaken = 3;
__device__ __forceinline__ void consumer_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kAll), "n"(kConsumerThreads) : "memory");
}
template <int kBarrier>
__device__ __forceinline__ void wait_for_other() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kConsumerThreads) : "memory");
}
template <int kBarrier>
__device__ __forceinline__ void tell_other() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kConsumerThreads) : "memory");
}

// Stores rows of half the columns as 16-bit elements. Neighbouring lanes exchange columns, so that each stores four.
template <class Sums>
__device__ __forceinline__ void put_mean(u16* mean, const Span& span, const Sums& sums, const float (&factors)[2]) {
  const bool odd = sums.lane % 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = span.row(sums.row(i));
    const u64 to =
        static_cast<u64>(max_of(row, 0)) * kLatentDim + sums.half * kHalfDim + odd * 8 + sums.lane % 4 / 2 * 4;
#pragma unroll
    for (int d = 0; d < kHalfDim / 8; d += 2) {
      const float (&a)[4] = sums.output[d], (&b)[4] = sums.output[d + 1];
      const u32 first = pack2(a[i * 2] * factors[i], a[i * 2 + 1] * factors[i]);
      const u32 second = pack2(b[i * 2] * factors[i], b[i * 2 + 1] * factors[i]);
      const u32 other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
      const uint2 columns = odd ? make_uint2(other, second) : make_uint2(first, other);
      if (row >= 0) *reinterpret_cast<uint2*>(mean + to + d * 8) = columns;
    }
  }
}

#ifdef TL_MAX_ITEMS

constexpr u32 kAllBytes = kAttendBytes + sizeof(Table);
constexpr int kQuads = kLatentDim / 4;

struct Results {
  u16* mean;
  float* partials;
  u32* arrivals;
  int num_shared = 0;
  Span first_shared = {}, last_shared = {};  // only a block's first and last spans can be parts of items

  __device__ __forceinline__ float* partial(int block, bool begins) const {
    return partials + static_cast<u64>(2 * block + begins) * kPartialFloats;
  }
  // The block's slot for a span: the second slot if the span begins an item, the first if it continues one.
  __device__ __forceinline__ float* own(const Span& span) const { return partial(blockIdx.x, span.worker == 0); }
  __device__ __forceinline__ float factor(const Span& span, float total) const {
    return span.num_workers == 1 ? 1.0f / total : 1.0f;
  }
  __device__ __forceinline__ void put_state(const Span& span, int r, float maximum, float total) const {
    if (span.num_workers == 1 || span.row(r) < 0) return;
    float* to = own(span) + kMaximumOffset + r;
    to[0] = maximum;
    to[kPartialRows] = total;
  }
  template <class Sums>
  __device__ __forceinline__ void put(const Span& span, const Sums& sums, const float (&factors)[2]) const {
    if (span.num_workers == 1) return put_mean(mean, span, sums, factors);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = sums.row(i);
      if (span.row(r) < 0) continue;
      float* to = own(span) + r * kLatentDim + sums.half * kHalfDim + sums.lane % 4 * 2;
#pragma unroll
      for (int d = 0; d < kHalfDim / 8; ++d) {
        *reinterpret_cast<float2*>(to + d * 8) = make_float2(sums.output[d][i * 2], sums.output[d][i * 2 + 1]);
      }
    }
  }
  // Called after a span: tells the blocks that share its item.
  __device__ __forceinline__ void end(const Span& span) {
    if (span.num_workers == 1) return;
    __threadfence();
    consumer_sync();
    if (threadIdx.x == 0) atomicAdd(arrivals + span.pair, 1u);
    if (++num_shared == 1) {
      first_shared = span;
    } else {
      last_shared = span;
    }
  }
  // Combines the items that this block shares with others. Called after all spans.
  __device__ __forceinline__ void combine() const {
    if (num_shared > 0) combine(first_shared);
    if (num_shared > 1) combine(last_shared);
  }
  // Combines the partial results of this block's share of an item's rows. PartLanes gives each lane of a warp its
  // columns and partial results.
  __device__ __forceinline__ void combine(const Span& span) const {
    const int count = span.num_workers, first_block = blockIdx.x - span.worker;
    if (threadIdx.x == 0) {
      while (load_acquire(arrivals + span.pair) < static_cast<u32>(count)) {
      }
    }
    consumer_sync();
    const PartLanes lanes(count);
    const int warps = kConsumerThreads / 32, warp = span.worker * warps + threadIdx.x / 32;
    for (int first = warp * lanes.width; first < kPartialRows * kQuads; first += count * warps * lanes.width) {
      const int quad = first + lanes.column, r = quad / kQuads, row = span.row(r);
      PartSums sums;
      for (int n = lanes.part; row >= 0 && n < count; n += lanes.parts()) {
        sums.add(partial(first_block + n, n == 0), r, quad % kQuads * 4);
      }
      lanes.add_up(sums);
      if (row >= 0 && lanes.part == 0) sums.put(mean + static_cast<u64>(row) * kLatentDim + quad % kQuads * 4);
    }
    consumer_sync();
    // The last block to finish resets the counter.
    if (threadIdx.x == 0 && atomicAdd(arrivals + span.pair, 1u) == 2 * static_cast<u32>(count) - 1) {
      arrivals[span.pair] = 0;
    }
  }
};

#else

constexpr u32 kAllBytes = kAttendBytes;

struct Results {
  u16* mean;  // [tokens, heads, latent_dim]
  float* partials;
  u32* arrivals;

  __device__ __forceinline__ float factor(const Span&, float total) const { return 1.0f / total; }
  __device__ __forceinline__ void put_state(const Span&, int, float, float) const {}
  template <class Sums>
  __device__ __forceinline__ void put(const Span& span, const Sums& sums, const float (&factors)[2]) const {
    put_mean(mean, span, sums, factors);
  }
  __device__ __forceinline__ void end(const Span&) const {}
  __device__ __forceinline__ void combine() const {}
};

#endif

}  // namespace tl
