// QueryKeyNorm: in each row of queries, keys and values, the RMS norm of all queries together, and of all keys.
//
// Bytes: 4 * features a row. FLOPs: about 2 a byte. Floor: bytes / bandwidth; for few rows latency, about 2 us, as rows
// are read from the L2 cache. One block a row; the row stays in registers. Launch: grid = rows, TL_THREADS threads.
// Macros: TL_QUERIES, TL_KEYS, TL_FEATURES (multiples of 8), TL_THREADS (a multiple of 32), TL_FP16.
#include "cuda/block_sum.cuh"

namespace tl {

constexpr int kQueries = TL_QUERIES / 8, kNormed = kQueries + TL_KEYS / 8;  // vectors of eight elements
constexpr int kVectors = TL_FEATURES / 8, kCount = ceil_div(kVectors, TL_THREADS);
static_assert(TL_QUERIES % 8 == 0 && TL_KEYS % 8 == 0 && TL_FEATURES % 8 == 0 && TL_THREADS % 32 == 0);

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS)
    query_key_norm(tl::u16* y, const tl::u16* x, const float* query_weight, const float* key_weight, float epsilon) {
  using namespace tl;
  wait_for_previous_kernel();
  allow_next_kernel();
  const u64 row = static_cast<u64>(blockIdx.x) * kVectors;
  uint4 packed[kCount];
  float queries = 0.0f, keys = 0.0f;  // sums of squares
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    packed[i] = reinterpret_cast<const uint4*>(x)[row + vector];
    float values[8], squares = 0.0f;
    unpack8(packed[i], values);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
    if (vector < kQueries) {
      queries += squares;
    } else if (vector < kNormed) {
      keys += squares;
    }
  }
  const float of_queries = rsqrtf(block_sum<0>(queries) / TL_QUERIES + epsilon);
  const float of_keys = rsqrtf(block_sum<1>(keys) / TL_KEYS + epsilon);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int vector = threadIdx.x + i * TL_THREADS;
    if (vector >= kVectors) break;
    if (vector < kNormed) {
      const bool is_query = vector < kQueries;
      const float* weight = is_query ? query_weight + vector * 8 : key_weight + (vector - kQueries) * 8;
      const float inverse = is_query ? of_queries : of_keys;
      float values[8];
      unpack8(packed[i], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] *= inverse * weight[j];
      packed[i] = pack8(values);
    }
    reinterpret_cast<uint4*>(y)[row + vector] = packed[i];
  }
}
