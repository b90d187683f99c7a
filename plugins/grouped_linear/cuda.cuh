// GroupedLinear for at most 16 rows: y[m] = the sum over s of x[m, s] @ w.T [+ share * b] [+ residual[m]]. Here w and b
// belong to the expert that row m has chosen in slot s, and share is its share, by which x[m, s] is multiplied already.
//
// The sum has a part for every chosen expert, in increasing order. The expert's rows of x are streamed with its
// weights; rows that did not choose it are zeros, so that a row's sum does not depend on the other rows. Each block
// chooses the experts for itself (router/chosen_list.cuh), by scores that were written before the previous kernel
// (GroupedGatedLinear), so experts are chosen and weights prefetched before that kernel's end. Bytes: 2*N*K for each
// chosen expert, half for 8-bit weights. Floor: bytes / bandwidth (8 experts of N = 2048, K = 768: 25 MB, 5.6 us at
// 4.47 TB/s). Launch and macros: see linear/cuda.cuh, router/chosen_list.cuh and cuda/feature_range.cuh; TL_BIAS and
// TL_RESIDUAL (0 or 1).
#include "cuda/feature_range.cuh"
#include "cuda/gemv_linear.cuh"
#include "router/chosen_list.cuh"

namespace tl {

// weight is [experts, TL_OUT, in]. Blocks share out the features of y; tiles are counted within the block, stage by
// stage.
struct GroupedOp {
  static constexpr int kStageEights = TL_STAGE_ROWS / 8, kStageTiles = ceil_div(kStageEights, 2);
  static_assert(TL_OUT % 8 == 0, "out_features must be a multiple of 8");
  static_assert(!kScaledRows, "row scales of several experts cannot be applied to one sum");
  const void* weight;
  BlockNumbers numbers;
  const ChosenList* list;  // in shared memory
  int first_local;         // the first of the rank's experts
  const float* bias;       // [experts, TL_OUT]
  const u16* residual;
  u16* y;
  FeatureRange own;

  // The features of half a tile, if there are any.
  __device__ __forceinline__ FeatureRange features(int tile, int half) const {
    const int of_stage = tile % kStageTiles * 2 + half;
    return of_stage < kStageEights ? own.run(tile / kStageTiles * kStageEights + of_stage) : FeatureRange{};
  }
  // Feature `f` of the run of eight; negative if the half tile does not have it.
  __device__ __forceinline__ int feature(int tile, int half, int f) const {
    const FeatureRange of_half = features(tile, half);
    const int at = of_half.first / 8 * 8 + f;
    return of_half.has(at) ? at : -1;
  }
  __device__ __forceinline__ float added(int feature, int m) const {
    float sum = TL_RESIDUAL ? unpack1(__ldcg(residual + static_cast<u64>(m) * TL_OUT + feature)) : 0.0f;
    if constexpr (TL_BIAS != 0) {
#pragma unroll
      for (int slot = 0; slot < kTopK; ++slot) {
        const int at = m * kTopK + slot, expert = local_number(list->choices[at], first_local);
        if (expert >= 0) sum += list->shares[at] * bias[static_cast<u64>(expert) * TL_OUT + feature];
      }
    }
    return sum;
  }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    const int first = feature(tile, 0, f), second = feature(tile, 1, f);
    return {first < 0 ? 0.0f : added(first, m), second < 0 ? 0.0f : added(second, m), 1.0f, 1.0f};
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float a, float b, Begun begun) const {
    const int first = feature(tile, 0, f), second = feature(tile, 1, f);
    u16* to = y + static_cast<u64>(m) * TL_OUT;
    if (first >= 0) to[first] = pack1(a + begun.x);
    if (second >= 0) to[second] = pack1(b + begun.y);
  }
};

template <>
struct WalkOf<GroupedOp> {
  using Op = GroupedOp;
  // A kernel earlier than the previous one wrote the scores, so that the list of experts is there before any wait.
  static constexpr bool kWaits = false, kListed = true, kOwn = true, kOnePart = false;
  __device__ __forceinline__ static int tiles(const Op& op) {
    return ceil_div(op.own.runs(), Op::kStageEights) * Op::kStageTiles;
  }
  __device__ __forceinline__ static int parts(const Op& op) { return op.list->count; }
  __device__ __forceinline__ static u64 first_row(const Op& op, int part, int tile, int half) {
    return static_cast<u64>(op.list->experts[part].expert) * TL_OUT + op.features(tile, half).first;
  }
  __device__ __forceinline__ static int num_rows(const Op& op, int tile, int half) {
    return op.features(tile, half).count();
  }
  __device__ __forceinline__ static u32 present(const Op& op, int part, int, int) {
    return op.list->experts[part].rows;
  }
  __device__ __forceinline__ static int x_row(const Op& op, int part, int row) {
    return row * kTopK + op.list->experts[part].slots[row];
  }
  __device__ __forceinline__ static bool stores(const Op&, int, int row, int rows) { return row < rows; }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kFewRowsThreads, 1)
    grouped_linear(tl::u16* y, const tl::u16* x, const void* weight, const void* weight_scale,
                   const void* weight_offset, const float* bias, const tl::u16* residual, const float* scores,
                   const float* score_bias, const float* correction, float score_scale, float threshold,
                   const tl::RankTable* ranks, const int* cache_slots, int spare, int rows,
                   const float* share_factors) {
  using namespace tl;
  __shared__ ChosenList list;
  const int first = first_local(ranks);
  const LaneTerms terms(score_bias, correction, threadIdx.x % 32);
  const StepChoice choice{
      {scores, score_bias, score_scale, threshold, share_factors}, terms, first, cache_slots, spare, rows};
  list.clear();
  if constexpr (TL_TOKENS > 1) block_sync();
  list.choose(choice);
  if (TL_BIAS != 0 && threadIdx.x < kConsumerThreads) list.add_shares(choice);
  // All threads see the list after the first barrier of the product.
  const FeatureRange own = FeatureRange::of_block(TL_OUT, blockIdx.x, gridDim.x);
  few_rows_linear<TL_IN, 0>({x, 0.0f}, nullptr, 0.0f, rows,
                            GroupedOp{weight, {weight_scale, weight_offset}, &list, first, bias, residual, y, own});
}
