// Attention of absorbed queries over latents in the paged cache, for sm_90a. The result of a row is the mean of the
// latents that it sees, weighted by the softmax of its scores. The latents and keys of the new tokens are in the caches
// already.
//
// Bytes: 2 * (latent_dim + rotary_dim) for each cached token, once per 64 rows (1,152: 64 sequences of 8192 tokens, 604
// MB, 135 us at 4.47 TB/s). FLOPs: 2 * (2 * latent_dim + rotary_dim) for each pair of a row and a key, for 64 rows even
// if there are fewer. With 16 heads a quarter of a tile's work is useful, and bytes are the floor; with 128 heads FLOPs
// are: 64 such sequences take 146 GFLOP, 185 us at 789 TFLOPS.
//
// A block works through spans (spans.cuh). A producer warp loads tiles of 64 tokens (tiles.cuh); each latent serves for
// scores and for sums. Two consumer warpgroups share 64 rows, each with half of the latent's columns. The first
// computes scores and weights, which the second reads from shared memory. It issues the scores of the next tile before
// its sums of the current one, so that the tensor cores work while it computes weights. (FlashMLA,
// github.com/deepseek-ai/FlashMLA, divides work like this.)
//
// Lengths, block tables and cache entries of earlier steps are read before the previous kernel has finished, so they
// must have been written before it began (see allow_next_kernel).
//
// Blocks that share an item write sums to `partials`. When all have done so, each combines its part of the rows, in
// block order. Blocks wait for each other only at their end; all blocks of a launch must run at the same time.
//
// Launch: 384 threads, TL_SHARED_BYTES of dynamic shared memory. With TL_MAX_ITEMS, for sequences
// of up to TL_NEW_TOKENS new tokens: any grid of at most one wave; `partials` holds 2 * grid * kPartialFloats,
// `arrivals` a zero for each head block of an item, which the kernel leaves zero. Without it, for any sequences: grid
// (row blocks, head blocks), where row blocks >= the sum over sequences of ceil(new tokens / kTokens); `partials` and
// `arrivals` are not used. Macros: those of extents.cuh.
#include "cuda/softmax.cuh"
#include "latent_attention/results.cuh"

namespace tl {

// Called by all consumer threads. `queries`: [tokens, heads, latent_dim + rotary_dim].
__device__ __forceinline__ void load_query(const u16* queries, const Span& span, Shared shared) {
  constexpr int kVectors = kQueryDim / 8;
  for (int i = threadIdx.x; i < kItemRows * kVectors; i += kConsumerThreads) {
    const int r = i / kVectors, vector = i % kVectors, row = span.row(r);
    const u16* from = queries + static_cast<u64>(max_of(row, 0)) * kQueryDim + vector * 8;
    copy16(shared.base + swizzled(r, vector, kItemRows), from, row >= 0);
  }
  copy_commit();
  copy_wait<0>();
  fence_async_copies();
  consumer_sync();
}

// What both warpgroups do: accumulate their half of the columns.
struct Summing {
  Shared shared;
  int half, lane, warp;  // warp: number within the warpgroup
  float output[kHalfDim / 8][4];

  __device__ __forceinline__ Summing(Shared s, int which)
      : shared(s), half(which), lane(threadIdx.x % 32), warp(threadIdx.x / 32 % 4) {}
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kHalfDim / 2; ++i) output[i / 4][i % 4] = 0.0f;
  }
  // Issues output += weights * latents of a tile.
  __device__ __forceinline__ void issue(const u32 (&weights)[kStep / 16][4], int use) {
    constexpr int kPart = kHalfDim % 128 == 0 ? 16 : 8;  // fragments of a product
    pin(output);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k) {
#pragma unroll
      for (int part = 0; part < kHalfDim / 8 / kPart; ++part) {
        const u32 at = shared.latents(use) + (half * (kHalfDim / 64) + part * kPart / 8) * LatentLayout::kMatrixBytes;
        const u64 latents = matrix_descriptor(at + k * 2 * LatentLayout::kGroupBytes, LatentLayout::kMatrixBytes,
                                              LatentLayout::kGroupBytes);
        wgmma_registers(reinterpret_cast<float (&)[kPart][4]>(output[part * kPart]), weights[k], latents);
      }
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void finish(int use) {
    wgmma_wait<0>();
    pin(output);
    if (lane == 0) barrier_arrive(shared.empty(use));
  }
  __device__ __forceinline__ int row(int i) const { return warp * 16 + i * 8 + lane / 4; }
  __device__ __forceinline__ float* factor(char* memory, int i) const {
    return reinterpret_cast<float*>(memory + kFactorOffset) + row(i);
  }
};

// The first warpgroup: computes scores and weights, and the first half of the columns.
struct Scoring {
  char* memory;
  float scale;  // factor of products; includes log2(e)
  Summing sums;
  bool has_sent = false;
  float scores[kStep / 8][4];
  u32 weights[kStep / 16][4];
  float correction[2];
  RowState rows;

  __device__ __forceinline__ void issue_scores(int use) {
    const Shared shared = sums.shared;
    barrier_wait(shared.full(use), Shared::parity(use));
    pin(scores);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueryDim / 16; ++k) {
      const u64 query = matrix_descriptor(shared.base + k / 4 * kItemRows * kBlockRowBytes + k % 4 * 32, 0);
      const bool is_latent = k < kLatentDim / 16;
      const u32 at = is_latent ? LatentLayout::pair_address(shared.latents(use), k)
                               : KeyLayout::pair_address(shared.keys(use), k - kLatentDim / 16);
      wgmma_shared(scores, query,
                   matrix_descriptor(at, 0, is_latent ? LatentLayout::kGroupBytes : KeyLayout::kGroupBytes), k > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void weigh(const Span& span, int tile) {
    pin(scores);
    const int key = tile * kStep;
    if (key + kStep - 1 > span.position) {
      int high[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        high[i] = span.position + min_of(sums.row(i) / kBlockHeads, span.count - 1) - key;
      }
      mask_scores_above(scores, high, sums.lane);
    }
    rows.weigh(scores, correction, scale);
  }
  // begin_message() and end_message() enclose writes to shared memory for the other warpgroup, which must first have
  // read the previous ones.
  __device__ __forceinline__ void begin_message() {
    if (has_sent) wait_for_other<kTaken>();
    has_sent = true;
  }
  __device__ __forceinline__ void put_factors(const float (&factors)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (sums.lane % 4 == 0) *sums.factor(memory, i) = factors[i];
    }
    tell_other<kLeft>();
  }
  __device__ __forceinline__ void put_weights() {
    pack_weights(scores, weights);
    begin_message();
#pragma unroll
    for (int i = 0; i < kStep / 16 * 4; ++i) {
      const u32 at = swizzled(sums.row(i % 2), i / 4 * 2 + i % 4 / 2, kItemRows) + sums.lane % 4 * 4;
      *reinterpret_cast<u32*>(memory + kWeightOffset + at) = weights[i / 4][i % 4];
    }
    put_factors(correction);
  }

  template <class Results>
  __device__ __forceinline__ void run(const Span& span, int use, const Results& results) {
    rows = RowState{};
    issue_scores(use);
    wgmma_wait<0>();
    weigh(span, span.begin);
    sums.clear();
#pragma unroll 1
    for (int tile = span.begin + 1; tile < span.end; ++tile, ++use) {
      use = uniform(use);
      put_weights();
      issue_scores(use + 1);
      sums.issue(weights, use);
      wgmma_wait<1>();
      weigh(span, tile);
      sums.finish(use);
      RowState::rescale(sums.output, correction);
    }
    put_weights();
    sums.issue(weights, use);
    sums.finish(use);
    float factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float total = quad_sum(rows.sum[i]);
      factors[i] = results.factor(span, total);
      if (sums.lane % 4 == 0) results.put_state(span, sums.row(i), rows.maximum[i], total);
    }
    begin_message();
    put_factors(factors);
    results.put(span, sums, factors);
  }
};

// The second warpgroup: computes the second half of the columns.
struct Following {
  char* memory;
  Summing sums;

  __device__ __forceinline__ void take_factors(float (&factors)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) factors[i] = *sums.factor(memory, i);
  }
  template <class Results>
  __device__ __forceinline__ void run(const Span& span, int use, const Results& results) {
    float factors[2];
    sums.clear();
#pragma unroll 1
    for (int tile = span.begin; tile < span.end; ++tile, ++use) {
      use = uniform(use);
      u32 weights[kStep / 16][4];
      wait_for_other<kLeft>();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) {
        const int row = sums.warp * 16 + sums.lane % 16;
        load_matrix_x4(weights[k], sums.shared.weights() + swizzled(row, k * 2 + sums.lane / 16, kItemRows));
      }
      take_factors(factors);
      tell_other<kTaken>();
      RowState::rescale(sums.output, factors);
      barrier_wait(sums.shared.full(use), Shared::parity(use));
      sums.issue(weights, use);
      sums.finish(use);
    }
    wait_for_other<kLeft>();
    take_factors(factors);
    tell_other<kTaken>();
    results.put(span, sums, factors);
  }
};

template <class Group>
__device__ __forceinline__ void consume(Group& group, const u16* queries, Spans spans, Results results) {
  wait_for_previous_kernel();
  allow_next_kernel();
  int use = 0;
  for (Span span; spans.next(span); use += span.end - span.begin) {
    load_query(queries, span, group.sums.shared);
    group.run(span, use, results);
    results.end(span);
  }
  results.combine();
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kConsumerThreads + tl::kGroupThreads, 1)
    attend_latents(tl::u16* mean, const tl::u16* queries, const tl::u16* key_cache, const tl::u16* latent_cache,
                   const int* cu_seqlens, const int* past_lens, const int* block_tables, int num_seqs, int max_blocks,
                   float scale, float* partials, tl::u32* arrivals) {
  using namespace tl;
  extern __shared__ __align__(1024) char memory[];
  static_assert(TL_SHARED_BYTES >= kAllBytes, "TL_SHARED_BYTES is too small");
  const Shared shared{shared_address(memory)};
  const Sequences sequences{cu_seqlens, past_lens, block_tables, num_seqs, max_blocks};
  const Results results{mean, partials, arrivals};
  const int warpgroup = uniform(threadIdx.x / kGroupThreads);
  if (threadIdx.x == 0) shared.init();
#ifdef TL_MAX_ITEMS
  Table& table = *reinterpret_cast<Table*>(memory + kAttendBytes);
  table.load(past_lens, cu_seqlens, num_seqs, 0);
  __syncthreads();
  if (threadIdx.x < 32) table.build();
  __syncthreads();
  const Spans spans(table);
#else
  __syncthreads();
  const Spans spans{sequences};
#endif
  if (warpgroup == kConsumers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kProducerRegisters));
    if (threadIdx.x < kConsumerThreads + 32) {
      Producer{sequences, key_cache, latent_cache, shared, static_cast<int>(threadIdx.x % 32)}.run(spans);
    }
  } else if (warpgroup == 0) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    Scoring group{memory, scale, Summing(shared, 0)};
    consume(group, queries, spans, results);
    if (group.has_sent) wait_for_other<kTaken>();  // every signal must be waited for
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kConsumerRegisters));
    Following group{memory, Summing(shared, 1)};
    consume(group, queries, spans, results);
  }
}
