// GatedDeltaRule: linear attention whose state, a float32 matrix of each value head, is read, updated by the new tokens
// of a sequence one after the other, and written. qkv, a, b and y have 16 bits.
//
// Bytes: 8 * value heads * key_dim * value_dim a sequence, and what tokens have. Floor: bytes / bandwidth; of a long
// prompt the latency of a token (two sums over four lanes, one after the other's change of the state) times its tokens.
//
// A block has 32 columns of the state of one head; columns do not depend on each other. A warp has eight columns: four
// lanes share a column, and each keeps a quarter of its rows in registers. Queries and keys of some tokens at a time
// are normalized into shared memory. While the state takes in a token, it is multiplied by that token's query and by
// the key of the next one. Sums run in an order that does not depend on the token's place in the step, so that a
// sequence gets the same bits however it is divided into steps.
//
// Launch: grid = (value_dim / 32, value heads, sequences), 128 threads. Macros: TL_KEY_HEADS, TL_VALUE_HEADS,
// TL_KEY_DIM, TL_VALUE_DIM, TL_FP16, and those of state_span.cuh.
#include "cuda/async.cuh"
#include "cuda/state_span.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kColumns = 32;                      // of a block
constexpr int kQuads = ceil_div(TL_KEY_DIM, 16);  // groups of four successive rows that a lane has
constexpr int kRows = kQuads * 16;                // of shared memory; rows beyond the state are zero
constexpr int kTokens = 16;                       // in shared memory at a time
constexpr int kKeys = TL_KEY_HEADS * TL_KEY_DIM;  // elements of all queries of a token, and of all keys
constexpr int kRowSize = 2 * kKeys + TL_VALUE_HEADS * TL_VALUE_DIM;
static_assert(TL_VALUE_HEADS % TL_KEY_HEADS == 0 && TL_KEY_DIM <= 256);

struct TokenRows {
  const u16* qkv;
  const u16* a;
  const u16* b;
};

// What a step adds to the state of a head: tokens in shared memory.
struct Tokens {
  float* queries;  // [kTokens, kRows]
  float* keys;
  float* decays;
  float* betas;
};

// ln(1 + e^x). Beyond 20, where both differ by less than a rounding error, the result is x.
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Stores x / sqrt(sum of x^2 + epsilon) * scale, by a warp.
__device__ __forceinline__ void normalize(float* to, const u16* x, float epsilon, float scale) {
  const int lane = threadIdx.x % 32;
  float squares = 0.0f;
  for (int i = lane; i < kRows; i += 32) {
    const float value = i < TL_KEY_DIM ? unpack1(x[i]) : 0.0f;
    squares += value * value;
    to[i] = value;
  }
  const float factor = scale * rsqrtf(warp_sum(squares) + epsilon);
  for (int i = lane; i < kRows; i += 32) to[i] *= factor;
}

// Loads `count` tokens from row `first` on; each warp loads some of them. `rate` and `bias` are those of the head.
__device__ __forceinline__ void load_tokens(const Tokens& to, const TokenRows& from, int first, int count, int head,
                                            float rate, float bias, float scale, float epsilon) {
  const int key_head = head / (TL_VALUE_HEADS / TL_KEY_HEADS);
  for (int token = threadIdx.x / 32; token < count; token += kWarps) {
    const u64 row = static_cast<u64>(first + token);
    const u16* query = from.qkv + row * kRowSize + key_head * TL_KEY_DIM;
    normalize(to.queries + token * kRows, query, epsilon, scale);
    normalize(to.keys + token * kRows, query + kKeys, epsilon, 1.0f);
    if (threadIdx.x % 32 == 0) {
      const float a = unpack1(from.a[row * TL_VALUE_HEADS + head]), b = unpack1(from.b[row * TL_VALUE_HEADS + head]);
      to.decays[token] = expf(-rate * softplus(a + bias));
      to.betas[token] = 1.0f / (1.0f + expf(-b));
    }
  }
}

// A sum over the rows of a column, of which a lane adds up a quarter in four parts.
struct RowSum {
  float parts[4] = {};

  __device__ __forceinline__ float of_column() const {
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    sum += __shfl_xor_sync(0xffffffffu, sum, 8);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
  }
};

// A lane's rows of one column of the state: row 16 * i + 4 * (lane / 8) + j is rows[i][j].
struct Column {
  float rows[kQuads][4];

  // Calls use(row, element) for each element that the state has.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = 16 * i + 4 * (threadIdx.x % 32 / 8) + j;
        if (row < TL_KEY_DIM) use(row, rows[i][j]);
      }
    }
  }

  static __device__ __forceinline__ float4 quad(const float* vector, int i) {
    return reinterpret_cast<const float4*>(vector)[4 * i + threadIdx.x % 32 / 8];
  }

  __device__ __forceinline__ float times(const float* key) const {
    RowSum sum;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) add(sum, quad(key, i), rows[i]);
    return sum.of_column();
  }

  // column = decay * column + delta * key. Returns the product of the new column and `query`; `seen` becomes that of it
  // and `next_key`.
  __device__ __forceinline__ float update(float decay, float delta, const float* key, const float* query,
                                          const float* next_key, float& seen) {
    RowSum result, of_next;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float4 keys = quad(key, i);
      rows[i][0] = fmaf(keys.x, delta, decay * rows[i][0]);
      rows[i][1] = fmaf(keys.y, delta, decay * rows[i][1]);
      rows[i][2] = fmaf(keys.z, delta, decay * rows[i][2]);
      rows[i][3] = fmaf(keys.w, delta, decay * rows[i][3]);
      add(result, quad(query, i), rows[i]);
      add(of_next, quad(next_key, i), rows[i]);
    }
    seen = of_next.of_column();
    return result.of_column();
  }

 private:
  static __device__ __forceinline__ void add(RowSum& sum, float4 vector, const float (&of_column)[4]) {
    sum.parts[0] = fmaf(vector.x, of_column[0], sum.parts[0]);
    sum.parts[1] = fmaf(vector.y, of_column[1], sum.parts[1]);
    sum.parts[2] = fmaf(vector.z, of_column[2], sum.parts[2]);
    sum.parts[3] = fmaf(vector.w, of_column[3], sum.parts[3]);
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(128)
    gated_delta_rule(tl::u16* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables,
                     int table_stride, const tl::u16* qkv, const tl::u16* a, const tl::u16* b, const float* a_log,
                     const float* dt_bias, float scale, float epsilon) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  const TokenRows rows{qkv, a, b};
  __shared__ float4 query_quads[kTokens * kRows / 4];
  __shared__ float4 key_quads[kTokens * kRows / 4];
  __shared__ float decays[kTokens];
  __shared__ float betas[kTokens];
  float* const queries = reinterpret_cast<float*>(query_quads);
  float* const keys = reinterpret_cast<float*>(key_quads);
  const int head = blockIdx.y, lane = threadIdx.x % 32;
  const int number = blockIdx.x * kColumns + threadIdx.x / 32 * 8 + lane % 8;
  const bool has_column = number < TL_VALUE_DIM;
  const float rate = expf(a_log[head]), bias = dt_bias[head];
  wait_for_previous_kernel();
  allow_next_kernel();
  const StateSpan span = places.of(blockIdx.z);
  if (span.count == 0) return;
  const auto element = [&](int block, int row) -> float& {
    return places.state(block)[(head * TL_KEY_DIM + row) * TL_VALUE_DIM + number];
  };
  Column column = {};
  if (span.source >= 0 && has_column)
    column.for_each([&](int row, float& value) { value = element(span.source, row); });
  for (int done = 0; done < span.count; done += kTokens) {
    const int first = span.first + done, count = min_of(kTokens, span.count - done);
    __syncthreads();  // the tokens before these are in the state
    load_tokens({queries, keys, decays, betas}, rows, first, count, head, rate, bias, scale, epsilon);
    __syncthreads();
    float seen = column.times(keys);
    for (int token = 0; token < count; ++token) {
      const u64 row = static_cast<u64>(first + token);
      const u16* values = qkv + row * kRowSize + 2 * kKeys + head * TL_VALUE_DIM;
      const float value = has_column ? unpack1(values[number]) : 0.0f;
      const float decay = decays[token], delta = betas[token] * (value - decay * seen);
      const float* key = keys + token * kRows;
      const float* next_key = token + 1 < count ? key + kRows : key;  // the last token's sum is not used
      const float result = column.update(decay, delta, key, queries + token * kRows, next_key, seen);
      if (lane < 8 && has_column) y[(row * TL_VALUE_HEADS + head) * TL_VALUE_DIM + number] = pack1(result);
    }
  }
  if (has_column) column.for_each([&](int row, float& value) { element(span.target, row) = value; });
}
