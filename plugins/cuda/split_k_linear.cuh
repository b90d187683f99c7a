// Split-K for up to 16 rows on sm_90a: y = x @ weight.T, where each of the TL_SPLITS blocks of a cluster takes a part
// of the depth.
//
// x is as large as a block's share of the weights (16 rows of 4096 elements: 131 KB). So no block loads all of x into
// its shared memory to normalize and quantize it: each does so with its part of the depth.
//
// A group is TL_STAGE_ROWS / 16 tiles of 16 weight rows (see few_rows.cuh). Two warpgroups multiply it by wgmma, taking
// alternate slices of the depth: weights of any format come from registers, one tile per warp; x comes from shared
// memory, with its rows as columns. A warp sends its sums to the blocks that store the tokens and goes on with the next
// group. It stores its block's results of a group after multiplying the next one, so that it never waits for sums in
// transit. Sums are added in a fixed order: a row's result does not depend on the other rows.
//
// Two buffers of sums are enough: a block that sends a group's sums has stored its results of the group before, so it
// has received that group's sums from all blocks, and each of them had read the sums of the group before that.
#pragma once

#include "cuda/narrow_wgmma.cuh"
#include "cuda/split_rows.cuh"
#include "cuda/weight_piece.cuh"
#include "cuda/weight_producer.cuh"

namespace tl {

// The interface of a product that Producer uses.
template <class Ring, int kIn_>
struct SplitProduct {
  static constexpr int kIn = kIn_, kPartK = Ring::kPartK, kChunks = ceil_div(kPartK, Ring::kStageK);
  static constexpr int kLastK = kPartK - (kChunks - 1) * Ring::kStageK;
  static constexpr bool kStreamX = false;
  __device__ __forceinline__ static int chunk_k(int chunk) { return chunk == kChunks - 1 ? kLastK : Ring::kStageK; }
};

// The sums of a warp: of rows lane / 4 and lane / 4 + 8 of its tile, for every fourth token.
template <class Ring>
struct PartSums {
  using Sum = SumOf<Ring::kRows>;
  using Fixed = FixedRows<Ring::kPartK, Ring::kTokens>;
  static constexpr int kFragments = Ring::kColumns / 8, kHeld = Ring::kFourBits ? kFragments : 2 * kFragments;
  // Elements of the depth that a warpgroup multiplies at a time.
  static constexpr int kSliceK = Ring::kFourBits ? max_of(Ring::kPieceK, min_of(kBlock, 128)) : 4 * Ring::kPieceK;
  static constexpr int kPieces = kSliceK / Ring::kPieceK, kPieceProducts = Ring::kPieceK / Ring::kProductK;
  static constexpr int kProducts = kPieces * kPieceProducts;
  // For weights in blocks: how many products share scales and offsets, and the number of such groups.
  static constexpr int kTogether = Ring::kFourBits ? min_of(kSliceK, max_of(1, kBlock)) / Ring::kProductK : kProducts;
  static constexpr int kGroups = kProducts / kTogether;

  // Products in flight: their weights and, for weights in blocks, their sums.
  struct Slice {
    u32 a[kProducts][4];
    Sum sums[kGroups][kFragments][4];
  };

  Sum sums[kFragments][4] = {};
  float scaled[kHeld][2] = {};  // only for weights in blocks

  __device__ __forceinline__ static int token(int i, int lane) {
    return Ring::kFourBits ? i * 4 + lane % 4 : i / 2 * 8 + lane % 4 * 2 + i % 2;
  }
  __device__ __forceinline__ float2 of_token(int i) const {
    if constexpr (Ring::kFourBits) return make_float2(scaled[i][0], scaled[i][1]);
    return make_float2(part_of(sums[i / 2][i % 2]), part_of(sums[i / 2][i % 2 + 2]));
  }

  // Adds the products of the first kSize elements of a stage. Warpgroup `group` takes every second slice. `x`: the
  // address of the columns; `first_k`: the stage's first element in them.
  template <int kSize>
  __device__ __forceinline__ void add_stage(u32 data, u32 x, int first_k, int group, int tile, int lane) {
    constexpr int kTurns = ceil_div(kSize, kWarpgroups * kSliceK);
    constexpr bool kEven = kSize % (kWarpgroups * kSliceK) == 0;
    // The offset of this warpgroup's first slice; the others are at constant distances from it.
    const int mine = group * kSliceK;
    const u32 row =
        data + tile * kRowsPerTile * Ring::kPitch + WeightPiece<Ring>::place(lane) + mine * Ring::kWeightBits / 8;
    const u64 columns = matrix_descriptor(x + columns_at(first_k + mine), 0);
    const u32 numbers =
        data + Ring::number_place(tile, 0) + lane / 4 * kNumberBytes + mine / max_of(1, kBlock) * kBlockBytes;
    const u32 x_numbers = x + Ring::kXBytes + (Fixed::number((first_k + mine) / kXBlock, 0) + lane % 4) * 4;
    Slice slices[2];
#pragma unroll
    for (int turn = 0; turn <= kTurns; ++turn) {
      const int k = turn * kWarpgroups * kSliceK, before = k - kWarpgroups * kSliceK;
      if (turn < kTurns && (kEven || mine + k < kSize)) {
        multiply<kSize>(slices[turn % 2], row + k * Ring::kWeightBits / 8, columns + (columns_at(k) >> 4), mine + k);
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      if (Ring::kFourBits && turn > 0 && (kEven || mine + before < kSize)) {
        scale(slices[(turn + 1) % 2], numbers + before / max_of(1, kBlock) * kBlockBytes,
              x_numbers + Fixed::number(before / kXBlock, 0) * 4);
      }
    }
    if constexpr (!Ring::kFourBits) pin(sums);
  }

 private:
  static constexpr int kXBlock = max_of(1, Fixed::kBlockK);

  // The offset of element `k` of the depth within the columns of x.
  __device__ __forceinline__ static constexpr u32 columns_at(int k) {
    constexpr int kRow = kBlockRowBytes;
    return k * Ring::kItemBytes / kRow * Ring::kColumns * kRow + k * Ring::kItemBytes % kRow;
  }
  // Offsets of turns add up, because a turn of all warpgroups has whole rows of 128 bytes.
  static_assert(kWarpgroups * kSliceK * Ring::kItemBytes % static_cast<int>(kBlockRowBytes) == 0);
  template <int kProduct>
  __device__ __forceinline__ void convert(const WeightPiece<Ring>& piece, u32 (*a)[4]) const {
    if constexpr (kProduct < kPieceProducts) {
      piece.template take<kProduct>(a[kProduct]);
      convert<kProduct + 1>(piece, a);
    }
  }
  template <int kSize>
  __device__ __forceinline__ void multiply(Slice& slice, u32 row, u64 columns, int k) {
    constexpr bool kWhole = kSize % kSliceK == 0;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (!kWhole && k + i * Ring::kPieceK >= kSize) break;
      WeightPiece<Ring> piece;
      piece.load(row + i * Ring::kPieceK * Ring::kWeightBits / 8);
      convert<0>(piece, &slice.a[i * kPieceProducts]);
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      if (!kWhole && k + i * Ring::kProductK >= kSize) break;
      const u64 b = columns + (columns_at(i * Ring::kProductK) >> 4);
      if constexpr (Ring::kFourBits) {
        wgmma_narrow<Ring::kRows>(slice.sums[i / kTogether], slice.a[i], b, i % kTogether > 0);
      } else {
        wgmma_narrow<Ring::kRows>(sums, slice.a[i], b, true);
      }
    }
    wgmma_commit();
  }
  // scaled += scale * scale of x * (weight @ x as integers) + offset * (sum of x), block by block.
  __device__ __forceinline__ void scale(Slice& slice, u32 numbers, u32 x_numbers) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      pin(slice.sums[g]);
      float scales[2], offsets[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32 at = numbers + g * kBlockBytes + half * Ring::kRunBytes;
        scales[half] = load_number(at);
        if (TL_OFFSETS) offsets[half] = load_number(at + Ring::kKindBytes);
      }
#pragma unroll
      for (int t = 0; t < kHeld; ++t) {
        const u32 at = x_numbers + Fixed::number(g, t * 4) * 4;
        const float x_scale = load_shared_float(at);
        const float x_sum = TL_OFFSETS ? load_shared_float(at + Fixed::kNumbers * 4) : 0.0f;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto(&bytes)[4] = slice.sums[g][t];
          const float whole = static_cast<float>(bytes[half * 2] * 256 + bytes[half * 2 + 1]);
          scaled[t][half] += whole * (scales[half] * x_scale);
          if (TL_OFFSETS) scaled[t][half] += offsets[half] * x_sum;
        }
      }
    }
  }
};

// The consumer warps. Those that have a tile send sums; all store the results that the block owns.
template <class Ring, class Op>
struct SplitConsumer {
  static constexpr int kOwnPairs = Ring::kPairs * Ring::kOwnTokens;
  static_assert(kOwnPairs <= kWarpgroups * Ring::kTilesPerStage * 32, "a thread stores one pair of features");
  const Op& op;
  RingPosition<Ring> at;
  char* memory;
  int rows, warp, lane;
  GroupShare<Ring> share = {};
  int tile = warp % 4;  // tile within a group
  bool has_tile = tile < Ring::kTilesPerStage;
  // What this thread stores of a group: two features of one token.
  int pair = (warp / 4 * Ring::kTilesPerStage + tile) * 32 + lane;
  int token = pair / Ring::kPairs * Ring::kSplits + share.part;

  __device__ __forceinline__ int stored_tile(int group) const {
    return share.template group<Op>(group) * Ring::kTilesPerStage + pair / 8 % Ring::kTilesPerStage;
  }
  __device__ __forceinline__ bool stores(int group) const {
    return pair < kOwnPairs && token < rows && stored_tile(group) < Op::kTiles;
  }
  __device__ __forceinline__ u32 sums(int group) const { return Ring::kSumOffset + group % 2 * Ring::kSumBytes; }
  __device__ __forceinline__ u32 barrier(int group) const { return at.shared + Ring::kSumBarrier + group % 2 * 8; }

  // The number of tokens whose sums are sent: at least one for each block, because a block that waited for no other
  // could be more than one group ahead.
  __device__ __forceinline__ int sent() const { return rows < Ring::kSplits ? Ring::kSplits : rows; }
  // The bytes of sums that this block receives for a group.
  __device__ __forceinline__ u32 sum_bytes() const {
    return Ring::kSources * ceil_div(sent() - share.part, Ring::kSplits) * Ring::kPairs * 8;
  }
  // Sends this warp's sums to the blocks that store them.
  __device__ __forceinline__ void send(int group, const PartSums<Ring>& part) const {
    const int source = share.part * kWarpgroups + warp / 4;
    const u32 mine = at.shared + sums(group) + (source * Ring::kOwnTokens * Ring::kPairs + tile * 8 + lane / 4) * 8;
#pragma unroll
    for (int i = 0; i < PartSums<Ring>::kHeld; ++i) {
      const int of = PartSums<Ring>::token(i, lane);
      if (of < sent()) {
        const u32 to = mine + of / Ring::kSplits * Ring::kPairs * 8;
        send_to_block(to, barrier(group), of % Ring::kSplits, part.of_token(i));
      }
    }
  }
  __device__ __forceinline__ void finish(int group, const Begun& begun) const {
    barrier_wait_cluster(barrier(group), group / 2 % 2);
    if (!stores(group)) return;
    const float2* from = reinterpret_cast<const float2*>(memory + sums(group)) + pair;
    float2 sum = from[0];
#pragma unroll
    for (int source = 1; source < Ring::kSources; ++source) {
      const float2 more = from[source * kOwnPairs];
      sum.x = add_parts(sum.x, more.x);
      sum.y = add_parts(sum.y, more.y);
    }
    if constexpr (kScaledRows) {
      const float* scales = reinterpret_cast<const float*>(memory + Ring::kScaleOffset);
      const float row_scale = Ring::kByteRows ? scales[token] : 1.0f;
      sum.x = rounded_product(sum_of_parts(sum.x), begun.scale_a * row_scale);
      sum.y = rounded_product(sum_of_parts(sum.y), begun.scale_b * row_scale);
    }
    op.store(stored_tile(group), pair % 8, token, sum.x, sum.y, begun);
  }

  template <class Product>
  __device__ __forceinline__ void run() {
    const u32 x = at.shared + Ring::kXOffset;
    const int groups = share.groups(op);
    const int multiplied = has_tile ? tile : 0;  // all warps of a warpgroup must multiply together, even if one's sums
                                                 // are unused
    Begun before = {}, begun = {};
#pragma unroll 1
    for (int i = 0; i < groups; ++i, before = begun) {
      if (threadIdx.x == 0) expect_bytes(barrier(i), sum_bytes());
      if (has_tile && stores(i)) begun = op.begin(stored_tile(i), pair % 8, token);
      PartSums<Ring> part;
#pragma unroll 1
      for (int chunk = 0; chunk < Product::kChunks; ++chunk, at.advance()) {
        barrier_wait(at.full(), at.parity);
        const int first_k = chunk * Ring::kStageK;
        if (Product::kLastK == Ring::kStageK || chunk + 1 < Product::kChunks) {
          part.template add_stage<Ring::kStageK>(at.data(), x, first_k, warp / 4, multiplied, lane);
        } else {
          part.template add_stage<Product::kLastK>(at.data(), x, first_k, warp / 4, multiplied, lane);
        }
        release_stage(at.empty(), lane);
      }
      if (!has_tile) continue;
      if (i > 0) finish(i - 1, before);
      // All lanes must have read the sums of that group before any lane lets another block overwrite them.
      __syncwarp();
      send(i, part);
    }
    if (groups > 0 && has_tile) finish(groups - 1, before);
  }
};

// A kernel of one product. x is [rows, kIn]; with kNorm, rms_norm(x) * norm_weight takes its place.
template <int kIn, bool kNorm, class Op>
__device__ __forceinline__ void few_rows_linear(const StreamedRows& x, const float* norm_weight, float epsilon,
                                                int rows, const Op& op) {
  using Ring = SplitRing<kIn>;
  using Product = SplitProduct<Ring, kIn>;
  extern __shared__ __align__(1024) char memory[];
  const RingPosition<Ring> start{shared_address(memory)};
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Ring::kStages; ++stage) {
      barrier_init(start.shared + stage * 16, kFullArrivals * kProducingWarps);
      barrier_init(start.shared + stage * 16 + 8, kWarpReleases * kConsumerWarps);
    }
    for (int i = 0; i < 4; ++i) barrier_init(start.shared + Ring::kSumBarrier + i * 8, 1);
    barrier_init_fence();
  }
  __syncthreads();
  cluster_arrive();
  const GroupShare<Ring> share;
  if (warp >= kConsumerWarps) {
    Producer<Ring, Product, Op>(op, start, rows, warp - kConsumerWarps, lane).copy(nullptr);
    return;
  }
  cluster_wait();
  if constexpr (kNorm) warm<Ring::kPartK>(norm_weight + share.part * Ring::kPartK);
  wait_for_previous_kernel();
  allow_next_kernel();
  PartRows<Ring>{memory, start.shared, share.part, warp, lane}.template load<kNorm, kIn>(x, norm_weight, epsilon, rows);
  SplitConsumer<Ring, Op>{op, start, memory, rows, warp, lane}.template run<Product>();
}

}  // namespace tl
