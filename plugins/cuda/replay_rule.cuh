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
//   log_decay(input, i) and factor(input), of the numbers decay_input(row, i) and factor_input(row)
//   result(row, i): where a result goes; kAddsValue: whether it has a part of the value, of_value()
#pragma once

#include "cuda/async.cuh"
#include "cuda/replay.cuh"
#include "cuda/warp_reduce.cuh"

namespace tl {

constexpr int kChunk = TL_REPLAYED;

// ln(1 + e^x). Beyond 20, where both differ by less than a rounding error, the result is x.
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// Calls store(i, element) for each element of a token's key, or of its query, by a warp.
template <bool kQuery, typename Operands, typename Store>
__device__ __forceinline__ void load_vector(const Operands& from, u64 row, const Store& store) {
  const u16* const x = kQuery ? from.query(row) : from.key(row);
  const int lane = threadIdx.x % 32;
  float scale = 1.0f;
  if constexpr (Operands::kNormalizes) {
    float squares = 0.0f;
    for (int i = lane; i < TL_KEY_DIM; i += 32) squares += unpack1(x[i]) * unpack1(x[i]);
    squares = warp_sum(squares);
    scale = kQuery ? from.query_scale(squares) : from.key_scale(squares);
  }
  for (int i = lane; i < TL_KEY_DIM; i += 32) store(i, unpack1(x[i]) * scale);
}

// Whether the step's tokens of a sequence are computed in chunks.
__device__ __forceinline__ bool has_chunks(StateSpan span) { return span.count > TL_MOST_TOKENS; }

// Stores the keys and decays of the step's tokens that stay behind the matrix, and its length, by kWarps warps. Nobody
// reads the state any more.
template <int kWarps, typename Operands>
__device__ __forceinline__ void store_tokens(const Operands& from, const ReplayState& state, StateSpan span) {
  const int lane = threadIdx.x % 32;
  const int kept = state.next_length > span.past ? state.next_length : span.past;
  for (int position = kept + threadIdx.x / 32; position < state.end; position += kWarps) {
    const u64 row = static_cast<u64>(span.first + position - span.past);
    load_vector<false>(from, row, [&](int i, float x) { state.key(position)[i] = x; });
    for (int i = lane; i < TL_DECAY_DIM; i += 32) {
      state.decay(position)[i] = from.log_decay(from.decay_input(row, i), i);
    }
  }
  if (threadIdx.x == 0) state.store_length();
}

}  // namespace tl
