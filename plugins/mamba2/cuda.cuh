// Mamba2: a state space model whose state is a float32 matrix of each head. xbc, dt and y have 16 bits. See
// cuda/replay_rule.cuh: B is a key, C a query, and x, times the step, an update.
//
// Launch: grid = (heads, sequences), kThreads threads. Macros: TL_HEADS, TL_GROUPS, TL_FP16, and those of replay.cuh
// and state_span.cuh.
#include "cuda/replay_rule.cuh"

namespace tl {

constexpr int kInputs = TL_HEADS * TL_VALUE_DIM;  // elements of the inputs of all heads of a token
constexpr int kVectors = TL_GROUPS * TL_KEY_DIM;  // elements of B of all groups, and of C
constexpr int kRowSize = kInputs + 2 * kVectors;
static_assert(TL_HEADS % TL_GROUPS == 0 && TL_DECAY_DIM == 1);

struct StateSpace {
  static constexpr bool kCorrects = false;

  u16* y;
  const u16* xbc;
  const u16* dt;
  float rate, bias, least, greatest, d;
  int head;

  template <typename Store>
  static __device__ __forceinline__ void load(const u16* vector, const Store& store) {
    for (int i = threadIdx.x % 32; i < TL_KEY_DIM; i += 32) store(i, unpack1(vector[i]));
  }
  // B of the head's group; C lies kVectors elements behind it.
  __device__ __forceinline__ const u16* vectors(u64 row) const {
    return xbc + row * kRowSize + kInputs + head / (TL_HEADS / TL_GROUPS) * TL_KEY_DIM;
  }
  template <typename Store>
  __device__ __forceinline__ void load_query(u64 row, const Store& store) const {
    load(vectors(row) + kVectors, store);
  }
  template <typename Store>
  __device__ __forceinline__ void load_key(u64 row, const Store& store) const {
    load(vectors(row), store);
  }
  __device__ __forceinline__ float log_decay(u64 row, int) const { return -rate * factor(row); }
  // The step.
  __device__ __forceinline__ float factor(u64 row) const {
    const float step = softplus(unpack1(dt[row * TL_HEADS + head]) + bias);
    return step < least ? least : step > greatest ? greatest : step;  // NaN stays NaN
  }
  __device__ __forceinline__ float value(u64 row, int i) const {
    return unpack1(xbc[row * kRowSize + head * TL_VALUE_DIM + i]);
  }
  __device__ __forceinline__ u16* result(u64 row, int i) const { return y + row * kInputs + head * TL_VALUE_DIM + i; }
  __device__ __forceinline__ float of_value() const { return d; }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    mamba2(tl::u16* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables, int table_stride,
           const tl::u16* xbc, const tl::u16* dt, const float* a_log, const float* dt_bias, const float* d,
           float min_step, float max_step) {
  using namespace tl;
  __shared__ Chunk chunk;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  const int head = blockIdx.x;
  const StateSpace from{y, xbc, dt, expf(a_log[head]), dt_bias[head], min_step, max_step, d[head], head};
  wait_for_previous_kernel();
  allow_next_kernel();
  const StateSpan span = places.of(blockIdx.y);
  if (span.count > 0) replay(chunk, from, places.state(span.block) + head * kStateSize, span);
}
