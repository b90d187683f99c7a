// GEMV: y = x @ weight.T for at most 16 rows of x, as in decode. The weights are read once and everything else is
// small.
//
// Bytes moved: the weights, once (N * K * 2, or N * K for 8-bit weights); x and y are negligible. Floor: those bytes
// over the memory bandwidth. The FLOPs (2 * M * N * K) stay far below the tensor cores' rate, so M = 8 costs about as
// much as M = 1.
//
// One block per SM streams tiles of 16 rows, or halves of tiles, of the row-major weights through a ring in shared
// memory (weight_ring.cuh). Eight or more consumer warps (kConsumerWarps) take the pieces of a stage, 32 bytes of 16
// rows, in turn through ldmatrix into mma.sync; the (zero-padded) rows of x are the 8-wide operand. At the end of a
// tile, the partial sums of all warps are added in shared memory in a fixed order: a row's result does not depend on
// the other rows. Where weights are dequantized in blocks, the warps form several teams with their own stages: while
// one finishes a tile, the others multiply.
#pragma once

#include "cuda/few_rows.cuh"
#include "cuda/fixed_sums.cuh"
#include "cuda/tile_sums.cuh"
#include "cuda/weight_producer.cuh"

namespace tl {

constexpr int kFewRowsThreads =
    kConsumerThreads + 32 * sharers_of(kWeightForm, TL_STAGE_K, TL_STREAM_X) * turns_of(TL_STREAM_X);

template <class Ring, class Product, bool kFixed>
struct ProductSumsIn {
  using Type = TileSums<Ring, Product>;
};
template <class Ring, class Product>
struct ProductSumsIn<Ring, Product, true> {
  using Type = FixedSums<Ring, Product>;
};
template <class Ring, class Product>
using ProductSums = typename ProductSumsIn<Ring, Product, Ring::kFixed>::Type;

// The consuming warps.
template <class Ring>
struct Consumer {
  RingPosition<Ring> at;
  char* memory;
  int rows;
  int buffer = 0;
  GroupShare<Ring> share = {};

  // Scales of the rows of bytes, or of the blocks of fixed-point numbers.
  template <class Product>
  __device__ __forceinline__ float* x_scales() const {
    const u32 at = Ring::kFixed ? Ring::kXOffset + Ring::kTokens * Product::kXPitch : Ring::kScaleOffset;
    return reinterpret_cast<float*>(memory + at);
  }
  __device__ __forceinline__ float* sums(int which) const {
    return reinterpret_cast<float*>(memory + Ring::kSumOffset) + which * Ring::kSumFloats;
  }

  // Copies all of x to shared memory, if it is not streamed.
  template <class Product, bool kNorm>
  __device__ __forceinline__ void load(const StreamedRows& x, const float* norm_weight, float epsilon) {
    static_assert(!(kNorm && Product::kStreamX), "the norm needs all of x");
    if constexpr (!Product::kStreamX) {
      const RowTarget to{memory + Ring::kXOffset, x_scales<Product>(), x.scale};
      load_rows<Product::kIn, Ring::kTokens, Product::kXPitch, kNorm, Ring::kRows, Ring::kFixed>(
          to, sums(0), x.rows, norm_weight, epsilon, rows);
    }
  }

  // Uses named barriers 2 and up, one for each team.
  __device__ __forceinline__ static void sync_team(int team) {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + team), "n"(32 * Ring::kTeamWarps) : "memory");
  }

  // Teams take groups of tiles in turn.
  template <class Product, class Op>
  __device__ __forceinline__ void products(const Op& op) {
    static_assert(kTeams == 1 || (Product::kChunks == 1 && WalkOf<Op>::kOnePart), "a group of tiles is a stage");
    constexpr int kTeamThreads = 32 * Ring::kTeamWarps;
    const int team = kTeams == 1 ? 0 : uniform(threadIdx.x / kTeamThreads), thread = threadIdx.x - team * kTeamThreads;
    const int warp = thread / 32, lane = thread % 32;
    // Each of the first kStores threads of a team finishes one pair of features.
    constexpr int kStores = 8 * Ring::kTilesPerStage * Ring::kTokens;
    static_assert(kStores <= kTeamThreads);
    const int feature = thread % 8, sub_tile = thread / 8 % Ring::kTilesPerStage;
    const int stored_token = thread / (8 * Ring::kTilesPerStage);
    using Walk = WalkOf<Op>;
    const int groups = share.groups(op), parts = Walk::parts(op);
    at.advance(team);
    // Not unrolled: a stage is enough work for an iteration, and unrolling makes compilation a seventh longer.
#pragma unroll 1
    for (int i = team; i < groups; i += kTeams, buffer ^= 1) {
      const int first_tile = share.template group<Op>(i) * Ring::kTilesPerStage, tile = first_tile + sub_tile;
      const bool stores = thread < kStores && tile < Walk::tiles(op) && Walk::stores(op, tile, stored_token, rows);
      const Begun begun = stores ? op.begin(tile, feature, stored_token) : Begun{};
      ProductSums<Ring, Product> part;
#pragma unroll 1
      for (int p = 0; p < parts; ++p) {
        const u32 present = Walk::present(op, p, first_tile, rows);
#pragma unroll 1
        for (int chunk = 0; chunk < Product::kChunks; ++chunk, at.advance(kTeams)) {
          barrier_wait(at.full(), at.parity);
          const u32 x = Product::kStreamX ? at.x_data() : at.shared + Ring::kXOffset,
                    zeros = at.shared + Ring::kZeroOffset;
          const int first_k = Product::kStreamX ? 0 : chunk * Ring::kStageK;
          part.add_stage(at.data(), Product::chunk_k(chunk), {x, zeros, first_k, present}, warp, lane);
          release_stage(at.empty(), lane);
        }
      }
      float* of_team = sums(buffer) + team * Ring::kTeamWarps * Ring::kTokens * Ring::kStageRows;
      part.put(of_team, warp, lane);
      sync_team(team);
      float a = 0.0f, b = 0.0f;
      const int row = stored_token * Ring::kStageRows + sub_tile * kRowsPerTile + feature;
      if (stores) {
#pragma unroll
        for (int w = 0; w < Ring::kTeamWarps; ++w) {
          a = add_parts(a, of_team[w * Ring::kTokens * Ring::kStageRows + row]);
          if (Ring::kHalves % 2 == 0 || sub_tile * 2 + 1 < Ring::kHalves) {
            b = add_parts(b, of_team[w * Ring::kTokens * Ring::kStageRows + row + 8]);
          }
        }
        if constexpr (kScaledRows) {
          const float row_scale = Ring::kByteRows ? x_scales<Product>()[stored_token] : 1.0f;
          a = rounded_product(sum_of_parts(a), begun.scale_a * row_scale);
          b = rounded_product(sum_of_parts(b), begun.scale_b * row_scale);
        }
        op.store(tile, feature, stored_token, a, b, begun);
      }
    }
  }
};

// Initializes barriers and zeros, first thing in a kernel of kFewRowsThreads threads. Returns the shared memory.
template <class Ring>
__device__ __forceinline__ char* start_stream() {
  extern __shared__ __align__(128) char memory[];
  if (threadIdx.x < 4) reinterpret_cast<u32*>(memory + Ring::kZeroOffset)[threadIdx.x] = 0;
  if (threadIdx.x == kConsumerThreads) {
    const u32 shared = shared_address(memory);
    for (int stage = 0; stage < Ring::kStages; ++stage) {
      barrier_init(shared + stage * 16, kFullArrivals * Ring::kSharers);
      barrier_init(shared + stage * 16 + 8, kWarpReleases * Ring::kTeamWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  return memory;
}

// A kernel of one product. x is [rows, kIn]; with kNorm, rms_norm(x) * norm_weight takes its place.
template <int kIn, bool kNorm, class Op>
__device__ __forceinline__ void few_rows_linear(const StreamedRows& x, const float* norm_weight, float epsilon,
                                                int rows, Op op) {
  using Ring = RingOf<kIn>;
  using Product = tl::Product<Ring, kIn, TL_STREAM_X>;
  char* memory = start_stream<Ring>();
  const RingPosition<Ring> start{shared_address(memory)};
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const bool produces = warp >= kConsumerWarps;
  Consumer<Ring> consumer{start, memory, rows};
  if (kNorm && !produces) warm<kIn>(norm_weight);
  if constexpr (WalkOf<Op>::kWaits) {
    Producer<Ring, Product, Op> producer(op, start, rows, max_of(warp - kConsumerWarps, 0), lane);
    if (produces) {
      producer.copy_known();
    } else {
      consumer.template load<Product, kNorm>(x, norm_weight, epsilon);
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    op.make_list();
    if (produces) return producer.copy(x.rows);
    op.finish_list();
  } else {
    if (produces) {
      return Producer<Ring, Product, Op>(op, start, rows, warp - kConsumerWarps, lane).copy(x.rows);
    }
    wait_for_previous_kernel();
    allow_next_kernel();
    consumer.template load<Product, kNorm>(x, norm_weight, epsilon);
  }
  consumer.template products<Product>(op);
}

}  // namespace tl
