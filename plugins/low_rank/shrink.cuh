// The first half of LowRank: projected[row][split][column] = the dot product of x with a row of the adapter's a, for
// each part of a product, over one split of the depth. (expand.cuh adds up the splits.)
//
// Bytes: an adapter's a once, 2 * rank * in per part. FLOPs: 2 * rank * in per row and part. Floor: bytes / bandwidth
// (16 adapters of rank 16, three parts of 4096: 6.3 MB, 1.4 us at 4.47 TB/s). Launch: grid (TL_SPLITS * blocks of
// columns, slots, ceil(rows / 64)), TL_THREADS threads, whose warps take 32 features each in turn. A block loads a
// before it waits for the previous kernel, because a does not depend on it.
//
// Both operands are loaded 16 bytes at a time: the eight features that a lane loads stand for the eight values of k in
// its fragments of two products. As x and a are permuted alike, the result is unchanged.
//
// Macros: TL_IN, TL_PARTS (of the product), TL_MAX_RANK (a multiple of 8), TL_SPLITS, TL_THREADS.
#include "cuda/mma.cuh"
#include "low_rank/group.cuh"

namespace tl {

constexpr int kTiles = TL_MAX_RANK % 16 == 0 ? 2 : 1;  // tiles of eight columns per block
constexpr int kColumnBlocks = kColumns / (8 * kTiles);
constexpr int kSteps = ceil_div(TL_IN, 32), kMostSteps = ceil_div(kSteps, TL_SPLITS);
constexpr int kHeld = 4;                               // steps of a warp in flight
constexpr bool kStays = kMostSteps <= kHeld * kWarps;  // whether a warp has at most that many steps
static_assert(TL_IN % 8 == 0, "rows are multiples of 16 bytes");

__device__ __forceinline__ uint4 vector_at(const u16* row, int feature) {
  return feature < TL_IN ? *reinterpret_cast<const uint4*>(row + feature) : no_vector();
}

// Rows of a for kHeld steps of a warp; zeros in columns beyond the rank and steps beyond the block's.
struct HeldWeights {
  uint4 vectors[kHeld][kTiles];

  __device__ __forceinline__ void load(const u16* a, int columns, int step, int end, int lane) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int at = step + h * kWarps, column = t * 8 + lane / 4;
        const bool present = at < end && t * 8 < columns;
        vectors[h][t] = present ? vector_at(a + static_cast<u64>(column) * TL_IN, at * 32 + lane % 4 * 8) : no_vector();
      }
    }
  }
};

// Adds the products of two rows of x with the rows of a, for kHeld steps.
__device__ __forceinline__ void add_products(float (&sums)[kTiles][4], const HeldWeights& held, const u16* upper,
                                             const u16* lower, int step, int end, int lane) {
  uint4 x[kHeld][2];
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int at = step + h * kWarps, feature = at * 32 + lane % 4 * 8;
    x[h][0] = upper != nullptr && at < end ? vector_at(upper, feature) : no_vector();
    x[h][1] = lower != nullptr && at < end ? vector_at(lower, feature) : no_vector();
  }
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const u32 first[4] = {x[h][0].x, x[h][1].x, x[h][0].y, x[h][1].y};
    const u32 second[4] = {x[h][0].z, x[h][1].z, x[h][0].w, x[h][1].w};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint4 weights = held.vectors[h][t];
      mma(sums[t], first, weights.x, weights.y);
      mma(sums[t], second, weights.z, weights.w);
    }
  }
}

// Adds up the warps' sums of a tile of rows. Each thread writes one column of one row.
__device__ __forceinline__ void store_sums(const float (&sums)[kTiles][4], float* projected, const RowGroup& group,
                                           int tile, int split, int column, int columns) {
  constexpr int kWidth = 8 * kTiles, kCount = kTileRows * kWidth;
  __shared__ float partial[kWarps * kCount];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, at = t * 8 + lane % 4 * 2 + i % 2;
      partial[warp * kCount + row * kWidth + at] = sums[t][i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kCount; i += TL_THREADS) {
    const int row = group.row(tile + i / kWidth);
    if (row < 0 || i % kWidth >= columns) continue;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w * kCount + i];
    projected[(static_cast<u64>(row) * TL_SPLITS + split) * kColumns + column + i % kWidth] = total;
  }
  __syncthreads();
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS, 2)
    low_rank_shrink(float* projected, const tl::u16* x, const tl::u16* a, const int* ranks, const int* rows,
                    const int* ends, int num_slots, int slot_stride, int num_rows) {
  using namespace tl;
  const int split = blockIdx.x / kColumnBlocks, column = blockIdx.x % kColumnBlocks * (8 * kTiles);
  const int slot = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const RowGroup group(rows, ends, slot, num_slots, num_rows);
  const int first = group.first + blockIdx.z * kTileRows;
  // The rank of the block's columns, which all lie in one part.
  const int rank = first < group.last ? of_slot(ranks, slot, slot_stride)[column / TL_MAX_RANK] : 0;
  const int columns = rank - column % TL_MAX_RANK;
  allow_next_kernel();
  if (columns <= 0) {
    wait_for_previous_kernel();
    return;
  }
  const u16* own = of_slot(a, slot, slot_stride) + static_cast<u64>(column) * TL_IN;
  const int begin = kSteps * split / TL_SPLITS + warp, end = kSteps * (split + 1) / TL_SPLITS;
  HeldWeights held;
  held.load(own, columns, begin, end, lane);
  int upper = group.row(first + lane / 4), lower = group.row(first + lane / 4 + 8);
  wait_for_previous_kernel();
#pragma unroll 1
  for (int tile = first; tile < group.last; tile += gridDim.z * kTileRows) {
    if (tile != first) upper = group.row(tile + lane / 4), lower = group.row(tile + lane / 4 + 8);
    const u16* upper_row = upper < 0 ? nullptr : x + static_cast<u64>(upper) * TL_IN;
    const u16* lower_row = lower < 0 ? nullptr : x + static_cast<u64>(lower) * TL_IN;
    float sums[kTiles][4] = {};
#pragma unroll 1
    for (int step = begin; step < end; step += kHeld * kWarps) {
      if (!kStays) held.load(own, columns, step, end, lane);
      add_products(sums, held, upper_row, lower_row, step, end, lane);
    }
    store_sums(sums, projected, group, tile, split, column, columns);
  }
}
