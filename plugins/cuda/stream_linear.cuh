// y = x @ weight.T for at most 16 rows of x: decoding, where the weights are read once and everything else is small.
//
// Bytes moved: the weights, once (N * K * 2, or N * K of bytes); x and y are noise. Floor: those bytes over the memory bandwidth. FLOPs
// (2 * M * N * K) stay far under the tensor cores' rate, so M = 8 costs about what M = 1 costs.
//
// One block per SM streams 16-row tiles of the row-major weights through a ring in shared memory (weight_ring.cuh).
// Eight warps consume: each takes every eighth 16x16 piece (16x32 of E4M3) of a stage through ldmatrix into mma.sync,
// with the (zero-padded) rows of x as the 8-wide operand, and the eight partial sums meet in shared memory at the end of
// a tile, in a fixed order: a row's result does not depend on the other rows.
//
// What is done with a tile is an Op (see plugins/linear/cuda.cuh):
//   kTiles                          number of 16-row tiles
//   const void* weight              row-major rows of kIn elements
//   u64 first_row(tile, h)          number of the first of the tile's rows 8h..8h+7 (h in 0..1), neighbours
//   int num_rows(tile, h)           how many of those exist (8, but at the end of the weights)
//   Begun begin(tile, f, m)         loads what store() needs, early enough to hide the latency
//   store(tile, f, m, a, b, begun)  results of rows f and f + 8 (f in 0..7) for token m, scaled
#pragma once

#include "cuda/int8.cuh"
#include "cuda/weight_ring.cuh"

#ifndef TL_RACECHECK
#define TL_RACECHECK 0
#endif

namespace tl {

constexpr int kStreamThreads = kConsumerThreads + 32;

// What an Op loads for two results before they are there: the scales of their rows of bytes, and two numbers of its own.
struct Begun {
  float x, y;
  float scale_a, scale_b;
};

// The consuming warps' tile: accumulators of kTilesPerStage x kTokenTiles fragments over this warp's share of k.
template <class Ring>
struct TileSums {
  float sums[Ring::kTilesPerStage][Ring::kTokenTiles][4] = {};

  // `x_row` is what this lane hands to ldmatrix: its token's row, or 16 zero bytes (and `x_mask` 0) past the last
  // token.
  __device__ __forceinline__ void add_stage(u32 data, int k_size, u32 x_row, u32 x_mask, int warp, int lane) {
    constexpr bool kInt8 = Ring::kForm == WeightForm::kInt8;
    const u32 a_row = data + (lane % 16) * Ring::kPitch + (kInt8 ? 0 : lane / 16 * 16);
#pragma unroll
    for (int i = 0; i < ceil_div(Ring::kStageK / Ring::kPieceK, kConsumerWarps); ++i) {
      const int k = (warp + i * kConsumerWarps) * Ring::kPieceK;
      if (k >= k_size) break;
      u32 b[4];
      if constexpr (Ring::kTokenTiles == 2) {
        load_matrix_x4(b, x_row + (k * Ring::kItemBytes & x_mask));
      } else {
        u32 pair[2];
        load_matrix_x2(pair, x_row + (k * Ring::kItemBytes & x_mask));
        b[0] = pair[0], b[1] = pair[1];
      }
#pragma unroll
      for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
        u32 a[4];
        const u32 from = a_row + tile * kRowsPerTile * Ring::kPitch + k * Ring::kWeightBytes;
        if constexpr (kInt8) {
          u32 bytes[2];
          load_matrix_x2(bytes, from);
          widen_int8(bytes[0], a[0], a[2]);
          widen_int8(bytes[1], a[1], a[3]);
        } else {
          load_matrix_x4(a, from);
        }
#pragma unroll
        for (int t = 0; t < Ring::kTokenTiles; ++t) {
          if constexpr (Ring::kE4m3) {
            mma_e4m3(sums[tile][t], a, b[2 * t], b[2 * t + 1]);
          } else {
            mma(sums[tile][t], a, b[2 * t], b[2 * t + 1]);
          }
        }
      }
    }
  }

  // Layout of the partial sums: [warp][token][row of the stage].
  __device__ __forceinline__ void put(float* target, int warp, int lane) {
#pragma unroll
    for (int tile = 0; tile < Ring::kTilesPerStage; ++tile) {
#pragma unroll
      for (int i = 0; i < Ring::kTokenTiles * 4; ++i) {
        const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int row = tile * kRowsPerTile + lane / 4 + i % 4 / 2 * 8;
        if (token < Ring::kTokens) {
          target[(warp * Ring::kTokens + token) * Ring::kStageRows + row] = sums[tile][i / 4][i % 4];
        }
      }
    }
  }
};

// The consuming warps.
template <class Ring>
struct Consumer {
  RingPosition<Ring> at;
  char* memory;
  int rows;
  int buffer = 0;

  __device__ __forceinline__ float* x_scales() const { return reinterpret_cast<float*>(memory + Ring::kScaleOffset); }
  __device__ __forceinline__ float* sums(int which) const {
    return reinterpret_cast<float*>(memory + Ring::kSumOffset) + which * Ring::kSumFloats;
  }

  template <class Product, bool kNorm, class Op>
  __device__ __forceinline__ void run(const Op& op, const u16* x, const float* norm_weight, float epsilon,
                                      float x_scale) {
    static_assert(!(kNorm && Product::kStreamX), "the norm needs all of x");
    if constexpr (kNorm) warm<Product::kIn>(norm_weight);
    wait_for_previous_kernel();
    allow_next_kernel();
    if constexpr (!Product::kStreamX) {
      const RowTarget to{memory + Ring::kXOffset, x_scales(), x_scale};
      load_rows<Product::kIn, Ring::kTokens, Product::kXPitch, kNorm, Ring::kE4m3>(to, sums(0), x, norm_weight, epsilon,
                                                                                  rows);
    }
    products<Product>(op);
  }

  // One lane speaks for its warp. racecheck does not follow __syncwarp(), so for its sake every lane can.
  __device__ __forceinline__ static void release(const RingPosition<Ring>& stage, int lane) {
    __syncwarp();
    if (TL_RACECHECK || lane == 0) barrier_arrive(stage.empty());
  }

  template <class Product, class Op>
  __device__ __forceinline__ void products(const Op& op) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    // Lanes 0-15 address the two k halves of tokens 0-7, lanes 16-31 those of tokens 8-15.
    const int token = lane / 16 * 8 + lane % 8;
    const bool present = token < rows && token < Ring::kTokens;
    const u32 x_offset = token * Product::kXPitch + lane / 8 % 2 * 16;
    // Threads below kStores finish one pair of features each.
    constexpr int kStores = 8 * Ring::kTilesPerStage * Ring::kTokens;
    static_assert(kStores <= kConsumerThreads);
    const int feature = thread % 8, sub_tile = thread / 8 % Ring::kTilesPerStage;
    const int stored_token = thread / (8 * Ring::kTilesPerStage);
    const int groups = groups_of_block<Ring, Op>();
    // A stage is work enough for a turn; copies of it only take the compiler a seventh longer.
#pragma unroll 1
    for (int i = 0; i < groups; ++i, buffer ^= 1) {
      const int tile = (blockIdx.x + i * gridDim.x) * Ring::kTilesPerStage + sub_tile;
      const bool stores = thread < kStores && stored_token < rows && tile < Op::kTiles;
      const Begun begun = stores ? op.begin(tile, feature, stored_token) : Begun{};
      TileSums<Ring> part;
#pragma unroll 1
      for (int chunk = 0; chunk < Product::kChunks; ++chunk, at.advance()) {
        barrier_wait(at.full(), at.parity);
        const u32 x_base = Product::kStreamX ? at.x_data() : at.shared + Ring::kXOffset + chunk * Ring::kStageK * Ring::kItemBytes;
        part.add_stage(at.data(), Product::chunk_k(chunk), present ? x_base + x_offset : at.shared + Ring::kZeroOffset,
                       present ? ~0u : 0u, warp, lane);
        release(at, lane);
      }
      part.put(sums(buffer), warp, lane);
      consumer_sync();
      if (stores) {
        float a = 0.0f, b = 0.0f;
#pragma unroll
        for (int w = 0; w < kConsumerWarps; ++w) {
          const int at_row = (w * Ring::kTokens + stored_token) * Ring::kStageRows + sub_tile * kRowsPerTile + feature;
          a += sums(buffer)[at_row];
          b += sums(buffer)[at_row + 8];
        }
        if (Ring::kForm != WeightForm::k16Bits) {
          const float row_scale = Ring::kE4m3 ? x_scales()[stored_token] : 1.0f;
          a *= begun.scale_a * row_scale;
          b *= begun.scale_b * row_scale;
        }
        op.store(tile, feature, stored_token, a, b, begun);
      }
    }
  }
};

// Barriers and zeros, before anything else of a kernel of kStreamThreads threads. Returns the shared memory.
template <class Ring>
__device__ __forceinline__ char* start_stream() {
  extern __shared__ __align__(128) char memory[];
  if (threadIdx.x < 4) reinterpret_cast<u32*>(memory + Ring::kZeroOffset)[threadIdx.x] = 0;
  if (threadIdx.x == kConsumerThreads) {
    const u32 shared = shared_address(memory);
    for (int stage = 0; stage < Ring::kStages; ++stage) {
      barrier_init(shared + stage * 16, kFullArrivals);
      barrier_init(shared + stage * 16 + 8, TL_RACECHECK ? kConsumerThreads : kConsumerWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  return memory;
}

// A kernel of one product. x is [rows, kIn]; with kNorm, rms_norm(x) * norm_weight takes its place. Where weights are
// E4M3, x becomes that with the scale `x_scale`, or, with TL_ROW_SCALES, with a scale for each row of at least `x_scale`.
template <class Ring, class Product, bool kNorm, class Op>
__device__ __forceinline__ void stream_linear(const u16* x, const float* norm_weight, float epsilon, float x_scale,
                                              int rows, const Op& op) {
  char* memory = start_stream<Ring>();
  const RingPosition<Ring> start{shared_address(memory)};
  if (threadIdx.x >= kConsumerThreads) {
    Producer<Ring>{start, start, rows, static_cast<int>(threadIdx.x % 32)}.template run<Product>(op, x);
  } else {
    Consumer<Ring>{start, memory, rows}.template run<Product, kNorm>(op, x, norm_weight, epsilon, x_scale);
  }
}

}  // namespace tl
