// GroupedGatedLinear for at most 16 rows: y[m, s] = share * activation(g) * u with g, u = [rms_norm](x[m]) @ w[0].T [+
// b[0]], w[1].T [+ b[1]]. Here w and b belong to the expert that row m has chosen in slot s, and share is its share.
// With TL_SCALES_INPUTS, not the result but both products are multiplied by the share. With TL_SELF_GATED, y[m, s] has
// share * activation(g) * g and, behind these features, share * activation(u) * u.
//
// The weights of every chosen expert are read once and multiplied by all rows; the results of rows that did not choose
// the expert are dropped. Bytes: 4*I*K for each chosen expert, half for 8-bit weights. Floor: bytes / bandwidth (8
// experts of I = 768, K = 2048: 50 MB, 11.3 us at 4.47 TB/s). The previous kernel writes the scores by which each block
// chooses the experts for itself (router/chosen_list.cuh), so only weights of shared experts, which every step reads,
// are prefetched before its end. The first block counts the choices. Launch and macros: see linear/cuda.cuh,
// router/chosen_list.cuh and cuda/feature_range.cuh; TL_OUT is the number of gated features I, TL_BIAS,
// TL_SCALES_INPUTS and TL_SELF_GATED are 0 or 1, TL_ACTIVATION is as in cuda/activation.cuh.
#include "cuda/activation.cuh"
#include "cuda/feature_range.cuh"
#include "cuda/gemv_linear.cuh"
#include "router/chosen_list.cuh"

namespace tl {

constexpr int kResults = 1 + TL_SELF_GATED;
constexpr int kSharedExperts = TL_SHARED;

// A tile is a run of eight gate rows and the eight up rows of the same features. weight is [experts, 2, TL_OUT, in].
//
// The features of all experts that are read are shared out among blocks (BlockFeatures): a block has some of the shared
// experts, which it reads first, and some of the others.
struct GroupedGatedOp {
  static_assert(TL_OUT % 8 == 0, "out_features must be a multiple of 8");
  const void* weight;
  BlockNumbers numbers;
  const float* scale;  // [experts, 2, TL_OUT]
  const float* bias;   // [experts, 2, TL_OUT]
  StepChoice choice;
  ChosenList* list;  // in shared memory
  Tally tally;
  u16* y;  // [rows, kTopK, kResults * TL_OUT]
  BlockFeatures own{kSharedExperts * TL_OUT};

  // All threads of the block make the list.
  __device__ __forceinline__ void make_list() {
    list->choose(choice);
    block_sync();
    own.add_others(max_of(list->count - kSharedExperts, 0) * TL_OUT);
  }
  // Consumers finish it while producers request weights.
  __device__ __forceinline__ void finish_list() {
    list->add_shares(choice);
    consumer_sync();
    if (blockIdx.x == 0 && threadIdx.x < 32) list->count_step(choice, tally);
  }

  __device__ __forceinline__ bool is_shared(int tile) const { return tile < own.known_runs(); }
  // The tile's features, counted over the shared experts or over the others.
  __device__ __forceinline__ FeatureRange features(int tile) const { return own.run(tile); }
  __device__ __forceinline__ static int number(const FeatureRange& features) { return (features.end - 1) / TL_OUT; }
  __device__ __forceinline__ int expert(int tile) const {
    const int at = number(features(tile));
    return is_shared(tile) ? kExperts - kSharedExperts + at : list->experts[at].expert;
  }
  // The tile's expert in the list, at whose end are the shared ones, if there are rows.
  __device__ __forceinline__ const ChosenExpert& record(int tile) const {
    const int at = number(features(tile));
    return list->experts[is_shared(tile) ? max_of(list->count - kSharedExperts, 0) + at : at];
  }
  __device__ __forceinline__ int slot(int tile, int m) const { return m * kTopK + record(tile).slots[m]; }
  // The first row of the tile's run of eight, gate rows or up rows.
  __device__ __forceinline__ u64 run_row(int tile, int half) const {
    return static_cast<u64>(expert(tile) * 2 + half) * TL_OUT + first_feature(tile);
  }
  __device__ __forceinline__ int first_feature(int tile) const { return features(tile).first % TL_OUT / 8 * 8; }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    Begun begun{list->shares[slot(tile, m)], 0.0f, 1.0f, 1.0f};
    if constexpr (kScaledRows) {
      const float* of_tile = scale + run_row(tile, 0) + f;
      begun.scale_a = of_tile[0];
      begun.scale_b = of_tile[TL_OUT];
    }
    return begun;
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float gate, float up, Begun begun) const {
    const FeatureRange of_tile = features(tile);
    if (!of_tile.has(of_tile.first / 8 * 8 + f)) return;
    const float before = TL_SCALES_INPUTS != 0 ? begun.x : 1.0f, behind = TL_SCALES_INPUTS != 0 ? 1.0f : begun.x;
    gate *= before;
    up *= before;
    if constexpr (TL_BIAS != 0) {
      const float* of_tile = bias + run_row(tile, 0) + f;
      gate += of_tile[0];
      up += of_tile[TL_OUT];
    }
    u16* to = y + static_cast<u64>(slot(tile, m)) * kResults * TL_OUT + first_feature(tile) + f;
    if constexpr (TL_SELF_GATED != 0) {
      to[0] = pack1(gated<TL_ACTIVATION>(gate, gate) * behind);
      to[TL_OUT] = pack1(gated<TL_ACTIVATION>(up, up) * behind);
    } else {
      to[0] = pack1(gated<TL_ACTIVATION>(gate, up) * behind);
    }
  }
};

template <>
struct WalkOf<GroupedGatedOp> {
  using Op = GroupedGatedOp;
  static constexpr bool kWaits = true, kListed = false, kOwn = true, kOnePart = true;
  __device__ __forceinline__ static int tiles(const Op& op) { return op.own.runs(); }
  __device__ __forceinline__ static int known_tiles(const Op& op) { return op.own.known_runs(); }
  __device__ __forceinline__ static constexpr int parts(const Op&) { return 1; }
  __device__ __forceinline__ static u64 first_row(const Op& op, int, int tile, int half) {
    return op.run_row(tile, half) + op.features(tile).first % 8;
  }
  __device__ __forceinline__ static int num_rows(const Op& op, int tile, int) { return op.features(tile).count(); }
  __device__ __forceinline__ static u32 present(const Op&, int, int, int rows) { return (1u << rows) - 1; }
  __device__ __forceinline__ static int x_row(const Op&, int, int row) { return row; }
  __device__ __forceinline__ static bool stores(const Op& op, int tile, int row, int) {
    return op.list->count > 0 && (op.record(tile).rows >> row & 1) != 0;
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kFewRowsThreads, 1)
    grouped_gated_linear(tl::u16* y, unsigned long long* counted, const tl::u16* x, const void* weight,
                         const void* weight_scale, const void* weight_offset, const float* bias,
                         const float* norm_weight, float epsilon, float x_scale, const float* scores,
                         const float* score_bias, const float* correction, float score_scale, float threshold,
                         const tl::RankTable* ranks, const int* cache_slots, int spare, int rows,
                         const float* share_factors) {
  using namespace tl;
  __shared__ ChosenList list;
  list.clear();
  const float* scale = static_cast<const float*>(weight_scale);
  const LaneTerms terms(score_bias, correction, threadIdx.x % 32);
  const StepChoice choice{
      {scores, score_bias, score_scale, threshold, share_factors}, terms, first_local(ranks), cache_slots, spare, rows};
  few_rows_linear<TL_IN, TL_NORM>(
      {x, x_scale}, norm_weight, epsilon, rows,
      GroupedGatedOp{weight, {weight_scale, weight_offset}, scale, bias, choice, &list, {counted}, y});
}
