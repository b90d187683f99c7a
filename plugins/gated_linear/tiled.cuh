// GatedLinear for many rows on sm_90a: y = activation(g) * u with g, u = x @ weight[0].T, weight[1].T.
//
// Bytes: 2*I*K*2 for the weights, 2*M*(K + I) for the rows. FLOPs: 4*M*I*K. Floor: FLOPs / rate from about 180 rows on
// (M = 256, I = 14336, K = 4096: 60 GFLOP, 76 us at 789 TFLOPS), the weights' bytes / bandwidth (52.5 us) below.
// Launch and macros as in cuda/tiled_linear.cuh; TL_OUT is the number of gated features I, TL_ACTIVATION
// as in cuda/activation.cuh.
#include "cuda/activation.cuh"
#include "cuda/tiled_linear.cuh"

namespace tl {

// A tile is as many rows of weight[0] and those of the same features of weight[1], so that a thread has both sums.
struct TiledGatedOp {
  static constexpr int kParts = 2;
  u16* y;

  // Of SiLU, gate / (1 + exp(-gate)) * up in five instructions; an exponential past float32 makes it 0, its limit.
  __device__ __forceinline__ static float gated(float gate, float up) {
    if constexpr (TL_ACTIVATION != 1) return activate<TL_ACTIVATION>(gate) * up;
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(gate * -1.44269504f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return gate * inverse * up;
  }
  template <int kBoth>
  __device__ __forceinline__ void finish(const float (&sums)[kBoth][4], int row, int column, int rows, int columns) const {
    constexpr int kCount = kBoth / 2;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + half * 8, present = r < rows ? (columns - column) / 8 : 0;
      u32 pieces[kCount];
#pragma unroll
      for (int f = 0; f < kCount; ++f) {
        const float(&gate)[4] = sums[f], (&up)[4] = sums[kCount + f];
        pieces[f] = pack2(gated(gate[half * 2], up[half * 2]), gated(gate[half * 2 + 1], up[half * 2 + 1]));
      }
      RowPart<kCount>{y + static_cast<u64>(r) * TL_OUT + column, present, lane}.store(pieces);
    }
  }
};

}  // namespace tl

extern "C" __global__ void TL_TILED_CLUSTER __launch_bounds__(tl::kTiledThreads, 1)
    gated_linear_tiled(const __grid_constant__ tl::TensorMap x, const __grid_constant__ tl::TensorMap weight, tl::u16* y,
                       int rows) {
  tl::tiled_linear(x, weight, rows, tl::TiledGatedOp{y});
}
