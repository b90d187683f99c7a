// Queries, keys and values of at most 16 new tokens: [rms_norm](x) @ weight.T [+ bias], RoPE, and the write into the
// paged cache, in one kernel.
//
// Bytes: the weights, once. FLOPs: 2*M*N*K. Floor: bytes / bandwidth (Llama-3.1-8B: 50.3 MB, 11.3 us at 4.47 TB/s).
// Launch and macros as in linear/cuda.cuh, except TL_OUT, TL_RESIDUAL and TL_FLOAT_OUT; also the macros of
// paged_attention/heads.cuh.
#include "cuda/few_rows_linear.cuh"
#include "paged_attention/heads.cuh"

namespace tl {

// A tile is a chunk of a head, so that one thread gets both elements of a pair that RoPE rotates. weight is [(heads + 2
// * kv_heads) * dim, in]: query, key, value heads.
struct QkvOp {
  using Chunk = HeadChunk<8>;
  static constexpr int kTiles = (TL_HEADS + 2 * TL_KV_HEADS) * Chunk::kPerHead;
  const void* weight;
  BlockNumbers numbers;
  const float* scale;  // one for each feature
  const float* bias;
  HeadTargets targets;
  const float* cos;  // [tokens, rotary_dim / 2]
  const float* sin;

  __device__ __forceinline__ u64 first_row(int tile, int half) const {
    const Chunk chunk(tile);
    return chunk.feature(half == 0 ? chunk.first : chunk.second);
  }
  __device__ __forceinline__ int num_rows(int tile, int) const { return tile < kTiles ? 8 : 0; }
  __device__ __forceinline__ Begun begin(int tile, int f, int m) const {
    const Chunk chunk(tile);
    Begun begun{1.0f, 0.0f, 1.0f, 1.0f};
    if (kScaledRows) {
      begun.scale_a = scale[chunk.feature(chunk.first + f)];
      begun.scale_b = scale[chunk.feature(chunk.second + f)];
    }
    if (!chunk.turns) return begun;
    const int at = m * (TL_ROTARY_DIM / 2) + chunk.first + f;
    begun.x = cos[at];
    begun.y = sin[at];
    return begun;
  }
  __device__ __forceinline__ void store(int tile, int f, int m, float a, float b, Begun turn) const {
    const Chunk chunk(tile);
    const int first = chunk.first + f, second = chunk.second + f;
    if (TL_BIAS) {
      a += bias[chunk.feature(first)];
      b += bias[chunk.feature(second)];
    }
    const Rotated pair(a, b, turn.x, turn.y);
    const HeadTarget target = targets.of(chunk.head, m, targets.slots[m]);
    target.put(first, pair.low);
    target.put(second, pair.high);
  }
};

}  // namespace tl

extern "C" __global__ void TL_FEW_ROWS_CLUSTER __launch_bounds__(tl::kFewRowsThreads, 1)
    qkv_linear(tl::u16* q, void* key_cache, void* value_cache, const tl::u16* x, const void* weight,
               const void* weight_scale, const void* weight_offset, const float* norm_weight, const float* bias,
               const float* cos, const float* sin, const int* slots, int rows, float epsilon, float x_scale,
               float key_factor, float value_factor) {
  tl::few_rows_linear<TL_IN, TL_NORM>({x, x_scale}, norm_weight, epsilon, rows,
                                      tl::QkvOp{weight,
                                                {weight_scale, weight_offset},
                                                static_cast<const float*>(weight_scale),
                                                bias,
                                                {q, key_cache, value_cache, slots, key_factor, value_factor},
                                                cos,
                                                sin});
}
