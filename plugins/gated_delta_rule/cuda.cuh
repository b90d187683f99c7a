// GatedDeltaRule: linear attention whose state is a float32 matrix of each value head. qkv, a, b and y have 16 bits.
// See cuda/replay_rule.cuh.
//
// Launch: grid = (value heads, sequences), kThreads threads. Macros: TL_KEY_HEADS, TL_VALUE_HEADS, TL_FP16, and those
// of replay.cuh and state_span.cuh.
#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kKeys = TL_KEY_HEADS * TL_KEY_DIM;  // elements of all queries of a token, and of all keys
constexpr int kRowSize = 2 * kKeys + TL_VALUE_HEADS * TL_VALUE_DIM;
static_assert(TL_VALUE_HEADS % TL_KEY_HEADS == 0);

// Calls store(i, x / sqrt(sum of x^2 + epsilon) * scale) for each element of a key or query, by a warp.
template <typename Store>
__device__ __forceinline__ void normalize(const u16* x, float epsilon, float scale, const Store& store) {
  const int lane = threadIdx.x % 32;
  float squares = 0.0f;
  for (int i = lane; i < TL_KEY_DIM; i += 32) squares += unpack1(x[i]) * unpack1(x[i]);
  const float factor = scale * rsqrtf(warp_sum(squares) + epsilon);
  for (int i = lane; i < TL_KEY_DIM; i += 32) store(i, unpack1(x[i]) * factor);
}

struct DeltaRule {
  static constexpr bool kCorrects = true;

  u16* y;
  const u16* qkv;
  const u16* a;
  const u16* b;
  const float* dt_bias;  // of the head
  float rate, scale, epsilon;
  int head;

  __device__ __forceinline__ const u16* query(u64 row) const {
    return qkv + row * kRowSize + head / (TL_VALUE_HEADS / TL_KEY_HEADS) * TL_KEY_DIM;
  }
  template <typename Store>
  __device__ __forceinline__ void load_query(u64 row, const Store& store) const {
    normalize(query(row), epsilon, scale, store);
  }
  template <typename Store>
  __device__ __forceinline__ void load_key(u64 row, const Store& store) const {
    normalize(query(row) + kKeys, epsilon, 1.0f, store);
  }
  __device__ __forceinline__ float log_decay(u64 row, int i) const {
    const u64 at = (row * TL_VALUE_HEADS + head) * TL_DECAY_DIM + i;
    return -rate * softplus(unpack1(a[at]) + dt_bias[i]);
  }
  __device__ __forceinline__ float factor(u64 row) const {
    return 1.0f / (1.0f + expf(-unpack1(b[row * TL_VALUE_HEADS + head])));
  }
  __device__ __forceinline__ float value(u64 row, int i) const {
    return unpack1(qkv[row * kRowSize + 2 * kKeys + head * TL_VALUE_DIM + i]);
  }
  __device__ __forceinline__ u16* result(u64 row, int i) const {
    return y + (row * TL_VALUE_HEADS + head) * TL_VALUE_DIM + i;
  }
  static __device__ __forceinline__ float of_value() { return 0.0f; }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    gated_delta_rule(tl::u16* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables,
                     int table_stride, const tl::u16* qkv, const tl::u16* a, const tl::u16* b, const float* a_log,
                     const float* dt_bias, float scale, float epsilon) {
  using namespace tl;
  __shared__ Chunk chunk;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  const int head = blockIdx.x;
  const DeltaRule from{y, qkv, a, b, dt_bias + head * TL_DECAY_DIM, expf(a_log[head]), scale, epsilon, head};
  wait_for_previous_kernel();
  allow_next_kernel();
  const StateSpan span = places.of(blockIdx.y);
  if (span.count > 0) replay(chunk, from, places.state(span.block) + head * kStateSize, span);
}
