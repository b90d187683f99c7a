// Attention in both directions within packed sequences, without a cache, on tensor cores (arXiv 2205.14135).
//
// FLOPs: 4 * heads * head_dim for each pair of a query and a key it sees (BERT-base, 64 texts of 512 tokens: 52 GFLOP a
// layer). Bytes: queries and results once; keys and values once per block of queries, mostly from the L2 cache.
//
// A block takes kRows consecutive queries of a sequence in one head; four warps hold 16 * TL_TILES of them each. Keys
// and values come in steps of kStep tokens, counted from the sequence's start, through two cp.async stages.
//
// Launch: 128 threads, TL_SHARED_BYTES of dynamic shared memory, grid (heads, row blocks), where row blocks >= sum over
// sequences of ceil(tokens / kRows); surplus blocks exit. Macros: TL_HEADS, TL_HEAD_DIM, TL_TILES, TL_STEP,
// TL_QUERY_STRIDE (elements from a row of queries or keys to the next one; values are 3 * TL_HEADS * TL_HEAD_DIM
// apart), TL_WINDOW (tokens on each side of a query, 0: all), TL_DISTANCES (columns of the bias, 0: none),
// TL_SHARED_BYTES.
#include "cuda/attending_warp.cuh"

namespace tl {

constexpr int kDim = TL_HEAD_DIM, kWarps = 4, kThreads = 32 * kWarps, kStep = TL_STEP;
constexpr int kRows = kWarps * 16 * TL_TILES, kColumns = kDim / 8;
constexpr int kMostDistance = TL_DISTANCES / 2;
using Warp = AttendingWarp<kDim, TL_TILES, kStep>;
constexpr u32 kPitch = Warp::kPitch, kQueryBytes = kRows * kPitch, kStageBytes = 2 * kStep * kPitch;
constexpr u32 kBiasBytes = TL_DISTANCES * 4;
constexpr float kLog2E = 1.4426950408889634f;
static_assert(TL_SHARED_BYTES >= kQueryBytes + 2 * kStageBytes + kBiasBytes, "TL_SHARED_BYTES is too small");

// Queries first .. first + count - 1 of a sequence of `length` tokens, whose first packed row is `row`.
struct Rows {
  int row, length, first, count;

  // Finds the index-th block of all sequences; count is 0 if there is none. Called by all lanes of a warp.
  __device__ __forceinline__ static Rows find(const int* cu_seqlens, int num_seqs, int index, int lane) {
    for (int base = 0; base < num_seqs; base += 32) {
      const int seq = base + lane, begin = seq < num_seqs ? cu_seqlens[seq] : 0;
      const int length = seq < num_seqs ? cu_seqlens[seq + 1] - begin : 0, blocks = ceil_div(length, kRows);
      int end = blocks;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int before = __shfl_up_sync(0xffffffffu, end, distance);
        if (lane >= distance) end += before;
      }
      const unsigned behind = __ballot_sync(0xffffffffu, end > index);
      if (behind != 0) {
        const int owner = __ffs(behind) - 1;
        const int first = (index - __shfl_sync(0xffffffffu, end - blocks, owner)) * kRows;
        const int its_length = __shfl_sync(0xffffffffu, length, owner);
        return {__shfl_sync(0xffffffffu, begin, owner), its_length, first, min_of(kRows, its_length - first)};
      }
      index -= __shfl_sync(0xffffffffu, end, 31);
    }
    return {0, 0, 0, 0};
  }
  // The first key that a query sees, rounded down to a multiple of kStep.
  __device__ __forceinline__ int first_key() const {
    return TL_WINDOW > 0 ? max_of(0, first - TL_WINDOW) / kStep * kStep : 0;
  }
  __device__ __forceinline__ int end_key() const {
    return TL_WINDOW > 0 ? min_of(length, first + count + TL_WINDOW) : length;
  }
  // Whether a query must not see some of the keys key .. key + kStep - 1.
  __device__ __forceinline__ bool hides(int key) const {
    const bool window_hides = key + kStep - 1 > first + TL_WINDOW || key < first + count - 1 - TL_WINDOW;
    return key + kStep > length || (TL_WINDOW > 0 && window_hides);
  }
};

// Copies kCount rows of a head from token `first` of the sequence on; tokens from `end` on become zeros.
template <int kCount>
__device__ __forceinline__ void fetch(u32 target, const u16* rows, int stride, const Rows& mine, int first, int end) {
#pragma unroll
  for (int i = 0; i < ceil_div(kCount * kColumns, kThreads); ++i) {
    const int piece = i * kThreads + threadIdx.x, r = piece / kColumns, column = piece % kColumns;
    if (kCount * kColumns % kThreads != 0 && piece >= kCount * kColumns) break;
    const bool present = first + r < end;
    const u64 row = present ? static_cast<u64>(mine.row + first + r) * stride + column * 8 : 0;
    copy16(target + r * kPitch + column * 16, rows + row, present);
  }
}

}  // namespace tl

extern "C" __global__ void __launch_bounds__(tl::kThreads)
    ragged_attention(tl::u16* output, const tl::u16* queries, const tl::u16* keys, const tl::u16* values,
                     const int* cu_seqlens, const float* distance_bias, int num_seqs, float scale) {
  using namespace tl;
  extern __shared__ __align__(128) char memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
  wait_for_previous_kernel();
  allow_next_kernel();
  const Rows mine = Rows::find(cu_seqlens, num_seqs, blockIdx.y, lane);
  if (mine.count == 0) return;
  const u32 query = shared_address(memory), stages = query + kQueryBytes;
  float* bias = reinterpret_cast<float*>(memory + kQueryBytes + 2 * kStageBytes);
  for (int i = threadIdx.x; i < TL_DISTANCES; i += kThreads) bias[i] = distance_bias[head * TL_DISTANCES + i] * kLog2E;

  const int offset = head * kDim, end_key = mine.end_key();
  constexpr int kValueStride = 3 * TL_HEADS * kDim;
  const auto fetch_keys = [&](int stage, int key) {
    const u32 at = stages + stage * kStageBytes;
    fetch<kStep>(at, keys + offset, TL_QUERY_STRIDE, mine, key, end_key);
    fetch<kStep>(at + kStep * kPitch, values + offset, kValueStride, mine, key, end_key);
  };
  fetch<kRows>(query, queries + offset, TL_QUERY_STRIDE, mine, mine.first, mine.first + mine.count);
  fetch_keys(0, mine.first_key());
  copy_commit();

  // The position in the sequence of each of this lane's rows; missing rows get that of the last row.
  int position[TL_TILES][2];
#pragma unroll
  for (int i = 0; i < TL_TILES * 2; ++i) {
    const int r = (warp * TL_TILES + i / 2) * 16 + i % 2 * 8 + lane / 4;
    position[i / 2][i % 2] = mine.first + min_of(r, mine.count - 1);
  }
  const float factor = TL_DISTANCES > 0 ? 1.0f : scale * kLog2E;
  Warp state;
  int stage = 0;
  for (int key = mine.first_key(); key < end_key; key += kStep, stage ^= 1) {
    copy_wait<0>();
    __syncthreads();
    if (key + kStep < end_key) fetch_keys(stage ^ 1, key + kStep);
    copy_commit();
    const bool masked = mine.hides(key);
    const auto adjust = [&](int t, float (&scores)[kStep / 8][4]) {
      if (TL_DISTANCES > 0) {
#pragma unroll
        for (int i = 0; i < kStep / 2; ++i) {
          float& score = scores[i / 4][i % 4];
          const int distance = key + i / 4 * 8 + lane % 4 * 2 + i % 2 - position[t][i % 4 / 2];
          const int column = max_of(min_of(distance, kMostDistance), -kMostDistance) + kMostDistance;
          score = score * (scale * kLog2E) + bias[column];
        }
      }
      if (!masked) return;
      int last[2], before[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = position[t][half] - key;
        last[half] = (TL_WINDOW > 0 ? min_of(place + TL_WINDOW, mine.length - 1 - key) : mine.length - 1 - key);
        before[half] = place - TL_WINDOW - 1;
      }
      mask_scores_above(scores, last, lane);
      if (TL_WINDOW > 0) mask_scores_up_to(scores, before, lane);
    };
    // A warp without rows adds nothing, but it has loaded keys for the others.
    if (warp * TL_TILES * 16 >= mine.count) continue;
    const u32 at = stages + stage * kStageBytes;
    state.step(query + warp * TL_TILES * 16 * kPitch, at, at + kStep * kPitch, factor, adjust, lane);
  }
#pragma unroll
  for (int i = 0; i < TL_TILES * 2; ++i) {
    const int t = i / 2, half = i % 2, r = (warp * TL_TILES + t) * 16 + half * 8 + lane / 4;
    const float inverse = 1.0f / quad_sum(state.rows[t].sum[half]);
    if (r >= mine.count) continue;
    u16* to = output + (static_cast<u64>(mine.row + mine.first + r) * TL_HEADS + head) * kDim + lane % 4 * 2;
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      const float* sums = state.output[t][d] + half * 2;
      *reinterpret_cast<u32*>(to + d * 8) = pack2(sums[0] * inverse, sums[1] * inverse);
    }
  }
}
