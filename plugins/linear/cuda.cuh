// Linear for a few rows: y = [rms_norm](x) @ weight.T [* weight_scale] [+ bias] [+ residual], 16-bit in, float32 sums.
//
// Bytes: N*K*2 for the weights, N*K where they are bytes. FLOPs: 2*M*N*K. Floor: bytes / bandwidth (N = K = 4096: 33.5
// MB, 7.5 us at 4.47 TB/s). Launch: kFewRowsThreads threads, TL_SHARED_BYTES of dynamic shared memory, one block per SM
// at most.
//
// Macros: TL_IN, TL_OUT (features), TL_SPLITS (blocks that share the depth of a row), TL_TOKENS (most rows: 1, 2, 4, 8,
// 16), TL_STAGE_K, TL_STAGE_ROWS, TL_STREAM_X, TL_CONSUMER_WARPS, TL_TEAMS (of these warps; 1 if x is streamed or a row
// takes several stages), TL_SHARED_BYTES, TL_IN_FLIGHT_BYTES and TL_WEIGHT_FORM (see cuda/weight_form.cuh),
// TL_ROW_SCALES (see cuda/few_rows.cuh), TL_NORM, TL_BIAS, TL_RESIDUAL (0 or 1), TL_FLOAT_OUT (1: y is float32),
// TL_ACTIVATION (cuda/activation.cuh; of the result and its bias), those of cuda/peer_rows.cuh.
#include "cuda/activation.cuh"
#include "cuda/few_rows_linear.cuh"
#include "cuda/peer_rows.cuh"

namespace tl {

// y = result [+ bias] [+ residual], as 16-bit elements or float32. y may alias residual: every element is read and
// written by the same thread.
struct LinearOp {
  static constexpr int kTiles = ceil_div(TL_OUT, kRowsPerTile);
  static_assert(!TL_ACTIVATION || !TL_RESIDUAL, "a residual would be added before the activation");
  // Tiled kernels add the bias first and then the residual.
  static constexpr bool kBiasFirst = TL_ORDERED && TL_BIAS && TL_RESIDUAL;
  const void* weight;
  BlockNumbers numbers;
  const float* scale;  // one for each feature
  PeerRows y;
  const float* bias;
  const u16* residual;

  __device__ __forceinline__ u64 first_row(int tile, int half) const { return tile * kRowsPerTile + half * 8; }
  __device__ __forceinline__ int num_rows(int tile, int half) const {
    if (TL_OUT % TL_STAGE_ROWS == 0) return 8;
    const int left = TL_OUT - (tile * kRowsPerTile + half * 8);
    return left < 0 ? 0 : left < 8 ? left : 8;
  }
  __device__ __forceinline__ float added(int feature, int m) const {
    float value = 0.0f;
    if (feature >= TL_OUT) return value;
    if (TL_BIAS && !kBiasFirst) value += bias[feature];
    if (TL_RESIDUAL) value += unpack1(__ldcg(residual + static_cast<u64>(m) * TL_OUT + feature));
    return value;
  }
  __device__ __forceinline__ float scale_of(int feature) const {
    return kScaledRows && feature < TL_OUT ? scale[feature] : 1.0f;
  }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    const int first = tile * kRowsPerTile + f, second = first + 8;
    return {added(first, m), added(second, m), scale_of(first), scale_of(second)};
  }
  __device__ __forceinline__ void put(int feature, int m, float value) const {
    if (feature >= y.columns()) return;
    if (TL_FLOAT_OUT) {
      y.row<float>(m)[feature] = value;
    } else {
      y.row<u16>(m)[feature] = pack1(value);
    }
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float a, float b, Begun begun) const {
    const int first = tile * kRowsPerTile + f;
    if (kBiasFirst && first < TL_OUT) a += bias[first];
    if (kBiasFirst && first + 8 < TL_OUT) b += bias[first + 8];
    put(first, m, activate<TL_ACTIVATION>(a + begun.x));
    put(first + 8, m, activate<TL_ACTIVATION>(b + begun.y));
  }
};

}  // namespace tl

extern "C" __global__ void TL_FEW_ROWS_CLUSTER __launch_bounds__(tl::kFewRowsThreads, 1)
    linear(void* y, const tl::u16* x, const void* weight, const void* weight_scale, const void* weight_offset,
           const float* norm_weight, const float* bias, const tl::u16* residual, const tl::RankTable* ranks, int rows,
           float epsilon, float x_scale) {
  const float* scale = static_cast<const float*>(weight_scale);
  tl::few_rows_linear<TL_IN, TL_NORM>(
      {x, x_scale}, norm_weight, epsilon, rows,
      tl::LinearOp{weight, {weight_scale, weight_offset}, scale, {y, ranks}, bias, residual});
}
