// Operators whose state is replayed (plugins/replay.py). cuda/replay_tokens.cuh takes a token after the other, and
// gives a sequence the same bits however it is divided into steps. cuda/replay_chunks.cuh multiplies chunks of tokens
// by tensor cores: it computes the sequences with more than TL_MOST_TOKENS new tokens, and the former kernel, which
// follows it, stores their last tokens.
//
// `Operands` has the operands of a head:
//   kCorrects: whether a token's update is its factor times what its value differs from what its key finds, or times
//     the value itself
//   key(row), query(row), values(row): 16-bit elements of a token
//   kNormalizes: whether keys and queries are multiplied by key_scale() and query_scale() of their sum of squares
//   log_decay(input, i) and factor(input), of the 16-bit numbers decay_bits(row, i) and factor_bits(row)
//   result(row, i): where a result goes; kAddsValue: whether it has a part of the value, of_value()
#pragma once

#include "cuda/async.cuh"
#include "cuda/replay.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kChunk = TL_REPLAYED;

// ln(1 + e^x). Beyond 20, where both differ by less than a rounding error, the result is x.
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// A number that all threads load. The compiler would keep it in a uniform register, for which a warp waits at once, but
// it does not know that threadIdx.y is 0.
__device__ __forceinline__ float load_for_later(const float* x) { return x[threadIdx.y]; }

constexpr int kKeyOfLane = ceil_div(TL_KEY_DIM, 32);  // elements of a key or a query, by a warp

// Requests a lane's elements of a token's key, or of its query.
template <bool kQuery, typename Operands>
__device__ __forceinline__ void request_vector(const Operands& from, u64 row, u16* bits) {
  const u16* const x = kQuery ? from.query(row) : from.key(row);
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kKeyOfLane; ++i) bits[i] = i * 32 + lane < TL_KEY_DIM ? x[i * 32 + lane] : 0;
}

// Calls store(i, element) for each element of a key, or of a query, that request_vector() requested.
template <bool kQuery, typename Operands, typename Store>
__device__ __forceinline__ void store_vector(const Operands& from, const u16* bits, const Store& store) {
  const int lane = threadIdx.x % 32;
  float scale = 1.0f;
  if constexpr (Operands::kNormalizes) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kKeyOfLane; ++i) squares += unpack1(bits[i]) * unpack1(bits[i]);
    squares = warp_sum(squares);
    scale = kQuery ? from.query_scale(squares) : from.key_scale(squares);
  }
#pragma unroll
  for (int i = 0; i < kKeyOfLane; ++i) {
    if (i * 32 + lane < TL_KEY_DIM) store(i * 32 + lane, unpack1(bits[i]) * scale);
  }
}

// Calls store(i, element) for each element of a token's key, or of its query, by a warp.
template <bool kQuery, typename Operands, typename Store>
__device__ __forceinline__ void load_vector(const Operands& from, u64 row, const Store& store) {
  u16 bits[kKeyOfLane];
  request_vector<kQuery>(from, row, bits);
  store_vector<kQuery>(from, bits, store);
}

// Whether the step's tokens of a sequence are computed in chunks.
__device__ __forceinline__ bool has_chunks(StateSpan span) { return span.count > TL_MOST_TOKENS; }

}  // namespace tl
