// HeadLayerNorm: in each row of queries, keys and values, the LayerNorm of each query head and of each key head.
//
// Bytes: 4 * features a row. FLOPs: about 4 a byte. Floor: bytes / bandwidth; for few rows latency, about 2 us, as rows
// are read from the L2 cache. One block a row; a warp takes a head, or several in turn, and a lane has up to eight of
// its elements. Launch: grid = rows, TL_THREADS threads. Macros: TL_NORMED_HEADS (of queries and keys), TL_FEATURES,
// TL_HEAD_DIM (a multiple of 8 up to 256), TL_THREADS (a multiple of 32), TL_FP16.
#include "cuda/async.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kVectors = TL_HEAD_DIM / 8;  // of a head, of eight elements each
static_assert(TL_HEAD_DIM % 8 == 0 && kVectors <= 32 && TL_THREADS % 32 == 0);
static_assert(TL_FEATURES % TL_HEAD_DIM == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    head_layer_norm(tl::u16* y, const tl::u16* x, const float* weight, float epsilon) {
  using namespace tl;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const u64 row = static_cast<u64>(blockIdx.x) * (TL_FEATURES / 8);
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int head = warp; head < TL_FEATURES / TL_HEAD_DIM; head += TL_THREADS / 32) {
    const bool has_some = lane < kVectors;
    const int vector = head * kVectors + lane;
    uint4 packed = has_some ? reinterpret_cast<const uint4*>(x)[row + vector] : make_uint4(0, 0, 0, 0);
    if (head < TL_NORMED_HEADS) {
      float values[8], sum = 0.0f, squares = 0.0f;
      unpack8(packed, values);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += values[j];
      const float mean = warp_sum(sum) / TL_HEAD_DIM;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        values[j] = has_some ? values[j] - mean : 0.0f;
        squares += values[j] * values[j];
      }
      const float inverse = rsqrtf(warp_sum(squares) / TL_HEAD_DIM + epsilon);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] *= has_some ? inverse * weight[vector * 8 + j] : 0.0f;
      packed = pack8(values);
    }
    if (has_some) reinterpret_cast<uint4*>(y)[row + vector] = packed;
  }
}
