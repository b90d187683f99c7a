// GatedLinear for a few rows: y = activation(g) * u with g, u = [rms_norm](x) @ weight[0].T, weight[1].T [+ bias[0],
// bias[1]] [+ the halves of added].
//
// Bytes: 2*I*K*2 for the weights, half where they are bytes. FLOPs: 4*M*I*K. Floor: bytes / bandwidth (I = 14336, K =
// 4096: 235 MB, 52.5 us at 4.47 TB/s). Launch and macros as in linear/cuda.cuh; TL_OUT is the number of gated features
// I, TL_BIAS and TL_ADDED 0 or 1, TL_ACTIVATION as in cuda/activation.cuh. TL_Y_TYPE: the RowType of y, whose bytes
// have the scale 1 / y_factor.
#include "cuda/activation.cuh"
#include "cuda/few_rows_linear.cuh"

namespace tl {

constexpr RowType kYType = static_cast<RowType>(TL_Y_TYPE);

// y = activation(gate) * up. A tile is eight gate rows and the eight up rows of the same features, so that one thread
// ends up with both. weight is [2, TL_OUT, in].
struct GatedOp {
  static constexpr int kTiles = TL_OUT / 8;
  static_assert(TL_OUT % 8 == 0, "out_features must be a multiple of 8");
  const void* weight;
  BlockNumbers numbers;
  const float* scale;  // [2, TL_OUT]
  const float* bias;   // [2, TL_OUT]
  const u16* added;    // [rows, 2 * TL_OUT]
  void* y;
  float y_factor;

  __device__ __forceinline__ u64 first_row(int tile, int half) const { return half * TL_OUT + tile * 8; }
  __device__ __forceinline__ int num_rows(int tile, int) const { return tile < kTiles ? 8 : 0; }
  __device__ __forceinline__ float more(int feature, int m) const {
    float value = TL_BIAS ? bias[feature] : 0.0f;
    if (TL_ADDED) value += unpack1(__ldcg(added + static_cast<u64>(m) * 2 * TL_OUT + feature));
    return value;
  }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    const int gate = tile * 8 + f, up = TL_OUT + gate;
    return {more(gate, m), more(up, m), kScaledRows ? scale[gate] : 1.0f, kScaledRows ? scale[up] : 1.0f};
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float gate, float up, Begun begun) const {
    gate += begun.x;
    up += begun.y;
    const u64 at = static_cast<u64>(m) * TL_OUT + tile * 8 + f;
    const float value = gated<TL_ACTIVATION>(gate, up);
    if constexpr (kYType != RowType::k16Bits) {
      static_cast<unsigned char*>(y)[at] = static_cast<unsigned char>(pack4<kYType>(value * y_factor, 0, 0, 0));
    } else {
      static_cast<u16*>(y)[at] = pack1(value);
    }
  }
};

}  // namespace tl

extern "C" __global__ void TL_FEW_ROWS_CLUSTER __launch_bounds__(tl::kFewRowsThreads, 1)
    gated_linear(void* y, const tl::u16* x, const void* weight, const void* weight_scale, const void* weight_offset,
                 const float* norm_weight, const float* bias, const tl::u16* added, int rows, float epsilon,
                 float x_scale, float y_factor) {
  tl::few_rows_linear<TL_IN, TL_NORM>(
      {x, x_scale}, norm_weight, epsilon, rows,
      tl::GatedOp{
          weight, {weight_scale, weight_offset}, static_cast<const float*>(weight_scale), bias, added, y, y_factor});
}
