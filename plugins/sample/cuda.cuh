// Sample: tokens[r], drawn from logits[r] as the sequence's parameters say; also into last_tokens[sample_slots[r]],
// where the next step's embedding finds it. temperature 0 takes the largest logit, the lowest id among equals.
// Otherwise softmax(logits / temperature), cut by top_k, top_p and min_p in this order (0, 1 and 0: off), and a draw by
// inverse transform in order of id with one Philox number: the token that csrc/sampling/sampler.h draws, but for
// roundings. A row that holds NaN or plus infinity, has nothing finite, or overflows when divided by its temperature
// gives -1 and leaves last_tokens alone. A negative slot stores nothing there.
//
// Bytes: 4 * vocab a row. FLOPs: a compare each if greedy. Floor: bytes / bandwidth, latency below 10 MB (about 4 us).
// From sm_90 on, a cluster of eight blocks does a row: a pass for the largest logit and, unless greedy, another to draw
// and about six more, mostly cheap, to find a border. Before, several blocks share the first pass, and the last to
// arrive does the rest.
//
// Launch: grid (blocks, rows), 512 threads, TL_SHARED_BYTES (65536) of dynamic shared memory; from sm_90 on, blocks is
// a multiple of eight, of which the first eight work. Before, `winners` holds rows * blocks u64, `arrivals` a zero per
// row, which the kernel leaves zero. Macros: TL_VOCAB, TL_SHARED_BYTES.
#include "sample/border.cuh"
#include "sample/philox.cuh"

namespace tl {

static_assert(TL_SHARED_BYTES >= kBinBytes, "TL_SHARED_BYTES is too small");

struct SamplingInputs {  // one entry a row
  const int* sample_slots;
  const float* temperature;
  const int* top_k;
  const float* top_p;
  const float* min_p;
  const int* seed_low;
  const int* seed_high;
  const int* sample_counter;
  const int* sequence_index;
};

constexpr u64 kUnusable = ~0ull;  // above every key of a usable logit

// The best of the ids that a thread visits, in order: the largest logit, the lowest id among equals.
struct Best {
  float logit = __int_as_float(0xff800000);
  int id = 0;
  bool usable = true;

  __device__ __forceinline__ void add(int other_id, float other) {
    usable = usable && other < __int_as_float(0x7f800000);  // NaN and plus infinity are not
    if (other > logit) {
      logit = other;
      id = other_id;
    }
  }
  // Orders like add(); a row that is not usable beats everything.
  __device__ __forceinline__ u64 key() const {
    return usable ? static_cast<u64>(sort_bits(logit)) << 32 | ~static_cast<u32>(id) : kUnusable;
  }
};

__device__ __forceinline__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

// In every thread.
__device__ __forceinline__ u64 block_max(u64 key) {
  __shared__ u64 partial[kWarps];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) key = larger(key, __shfl_xor_sync(0xffffffffu, key, offset));
  __syncthreads();  // the last use of `partial` is over
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = key;
  __syncthreads();
  key = partial[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) key = larger(key, partial[w]);
  return key;
}

#if TL_HAS_CLUSTERS
// The best key of a row in every thread of its cluster.
__device__ __forceinline__ u64 row_max(u64 key) {
  __shared__ u64 mine;
  key = block_max(key);
  if (threadIdx.x == 0) mine = key;
  cluster_sync();
#pragma unroll
  for (int rank = 0; rank < kBlocks; ++rank) key = larger(key, load_of_block(&mine, rank));
  cluster_sync();
  return key;
}
#else
// The best key of row r in every thread of the last of its blocks to arrive; 0 in the others.
__device__ __forceinline__ u64 last_max(u64 key, int r, u64* winners, u32* arrivals) {
  __shared__ bool last;
  const int blocks = gridDim.x;
  key = block_max(key);
  if (threadIdx.x == 0) {
    winners[r * blocks + blockIdx.x] = key;
    __threadfence();
    last = atomicAdd(arrivals + r, 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return 0;
  key = 0;
  for (int i = threadIdx.x; i < blocks; i += kThreads) key = larger(key, __ldcg(winners + r * blocks + i));
  if (threadIdx.x == 0) arrivals[r] = 0;
  return block_max(key);
}
#endif

__device__ __forceinline__ int draw(const Row& row, const SamplingInputs& in, int r, u64* columns) {
  Border border = {sort_bits(row.max_scaled - kNegligible)};
  if (in.top_k[r] > 0 && in.top_k[r] < TL_VOCAB) border = narrow(row, border, in.top_k[r], 1.0f, columns);
  if (in.top_p[r] < 1.0f) border = narrow(row, border, 0, in.top_p[r], columns);
  const double uniform = token_uniform(in.seed_low[r], in.seed_high[r], in.sample_counter[r], in.sequence_index[r]);
  const float skip = row.surely_below(border);
  return find_by_sum(
      row.logits, [&](int id, float logit) { return logit >= skip ? row.weight_within(border, id, logit) : 0; },
      [&](u64 total) {
        const u64 target = static_cast<u64>(uniform * static_cast<double>(total));
        return target < total ? target : total - 1;
      });
}

// The token of row r, whose largest logit has this key; -1 if there is none.
__device__ __forceinline__ int choose(u64 best, const float* logits, const SamplingInputs& in, int r, u64* columns) {
  const float maximum = from_sort_bits(static_cast<u32>(best >> 32)), temperature = in.temperature[r];
  if (best == kUnusable || isinf(maximum)) return -1;
  if (temperature == 0.0f) return static_cast<int>(~static_cast<u32>(best));
  const Row row{logits, temperature, maximum / temperature, in.min_p[r]};
  return isinf(row.max_scaled) ? -1 : draw(row, in, r, columns);
}

}  // namespace tl

extern "C" __global__ void TL_CLUSTER_DIMS(tl::kBlocks) __launch_bounds__(tl::kThreads, 2)
    sample(int* tokens, const float* logits, tl::u64* winners, tl::u32* arrivals, int* last_tokens,
           const __grid_constant__ tl::SamplingInputs in) {
  using namespace tl;
  extern __shared__ __align__(16) u64 columns[];
  wait_for_previous_kernel();
  allow_next_kernel();
  const int r = blockIdx.y, blocks = TL_HAS_CLUSTERS ? kBlocks : gridDim.x;
  if (static_cast<int>(blockIdx.x) >= blocks) return;
  const float* row = logits + static_cast<u64>(r) * TL_VOCAB;
  Best best;
  visit_row(row, blockIdx.x * kThreads + threadIdx.x, blocks * kThreads,
            [&](int id, float logit) { best.add(id, logit); });
#if TL_HAS_CLUSTERS
  const u64 key = row_max(best.key());
#else
  const u64 key = last_max(best.key(), r, winners, arrivals);
  if (key == 0) return;
#endif
  const int token = choose(key, row, in, r, columns);
  if (threadIdx.x > 0 || cluster_rank() > 0) return;
  tokens[r] = token;
  const int slot = in.sample_slots[r];
  if (slot >= 0 && token >= 0) last_tokens[slot] = token;
}
