// CausalConv: a convolution of TL_WIDTH taps along each sequence, of each channel by itself, after the inputs that the
// sequence's state has; x, weight and y have 16 bits, states and sums are float32.
//
// Bytes: 8 * channels a token, and 4 * history * channels a sequence. Floor: bytes / bandwidth; for few tokens latency,
// about 2 us. A thread has two channels of TL_TOKENS successive tokens, of as many sequences as these belong to, and
// keeps the last inputs in registers. A block that starts within the first history tokens of a sequence leaves these to
// the block that has the first token: only that one reads and writes the state.
//
// Launch: grid = (channels / 2 / threads, tokens / TL_TOKENS). Macros: TL_CHANNELS (even), TL_X_PITCH
// (elements from a row of x to the next, even), TL_WIDTH, TL_SLOTS (places of tokens in a state), TL_TOKENS,
// TL_ACTIVATION, TL_FP16, and those of state_span.cuh.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"
#include "cuda/sequence_of.cuh"
#include "cuda/state_span.cuh"

namespace tl {

constexpr int kPairs = TL_CHANNELS / 2, kPitch = TL_X_PITCH / 2, kHistory = TL_WIDTH - 1;
static_assert(TL_CHANNELS % 2 == 0 && TL_X_PITCH % 2 == 0 && TL_WIDTH > 1 && TL_SLOTS > kHistory);

// The last inputs of two channels, the oldest first.
struct History {
  float2 inputs[kHistory];

  __device__ __forceinline__ void push(float2 input) {
#pragma unroll
    for (int j = 0; j + 1 < kHistory; ++j) inputs[j] = inputs[j + 1];
    inputs[kHistory - 1] = input;
  }
};

// The first token at or after `token` whose block does not depend on the sequence's state; num_tokens if there is none.
__device__ __forceinline__ int first_token(int token, const int* cu_seqlens, int num_seqs, int num_tokens) {
  if (token >= num_tokens) return num_tokens;
  const int seq = sequence_of(token, cu_seqlens, num_seqs), first = cu_seqlens[seq];
  if (token == first || token - first >= kHistory) return token;
  return min_of(cu_seqlens[seq + 1], first + kHistory);
}

// Reads the last inputs before the new tokens of a sequence, and adds theirs to the state. x: the channels of token 0.
__device__ __forceinline__ History exchange_state(const StatePlaces& places, const u32* x, StateSpan span, int pair) {
  const auto stored = [&](int position) {
    return places.state(span.block) + position % TL_SLOTS * TL_CHANNELS + 2 * pair;
  };
  History before;
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    const int position = span.past - kHistory + j;
    const float* const from = position < 0 ? nullptr : stored(position);
    before.inputs[j] = from ? make_float2(from[0], from[1]) : make_float2(0.0f, 0.0f);
  }
  for (int i = span.count > TL_SLOTS ? span.count - TL_SLOTS : 0; i < span.count; ++i) {
    const float2 input = unpack2(x[static_cast<u64>(span.first + i) * kPitch]);
    float* const to = stored(span.past + i);
    to[0] = input.x;
    to[1] = input.y;
  }
  return before;
}

}  // namespace tl

extern "C" __global__ void causal_conv(tl::u32* y, float* states, const int* cu_seqlens, const int* past_lens,
                                       const int* tables, int table_stride, const tl::u32* x, const tl::u16* weight,
                                       const float* bias, int num_seqs, int num_tokens) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  wait_for_previous_kernel();
  allow_next_kernel();
  const int pair = blockIdx.x * blockDim.x + threadIdx.x;
  if (pair >= kPairs) return;
  x += pair;
  y += pair;
  float2 taps[TL_WIDTH];
#pragma unroll
  for (int j = 0; j < TL_WIDTH; ++j) {
    const u16* of_channel = weight + 2 * pair * TL_WIDTH + j;
    taps[j] = make_float2(unpack1(of_channel[0]), unpack1(of_channel[TL_WIDTH]));
  }
  const float2 start = bias ? make_float2(bias[2 * pair], bias[2 * pair + 1]) : make_float2(0.0f, 0.0f);
  const int begin = static_cast<int>(blockIdx.y) * TL_TOKENS;
  int token = first_token(begin, cu_seqlens, num_seqs, num_tokens);
  const int end = first_token(begin + TL_TOKENS, cu_seqlens, num_seqs, num_tokens);
  if (token >= end) return;
  int seq = sequence_of(token, cu_seqlens, num_seqs);
  History history;
  if (token > cu_seqlens[seq]) {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      history.inputs[j] = unpack2(x[static_cast<u64>(token - kHistory + j) * kPitch]);
    }
  }
  for (; token < end; ++token) {
    while (cu_seqlens[seq + 1] <= token) ++seq;
    if (token == cu_seqlens[seq]) history = exchange_state(places, x, places.of(seq), pair);
    const float2 input = unpack2(x[static_cast<u64>(token) * kPitch]);
    float2 sum = start;
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      sum.x = fmaf(taps[j].x, history.inputs[j].x, sum.x);
      sum.y = fmaf(taps[j].y, history.inputs[j].y, sum.y);
    }
    sum.x = fmaf(taps[kHistory].x, input.x, sum.x);
    sum.y = fmaf(taps[kHistory].y, input.y, sum.y);
    history.push(input);
    y[static_cast<u64>(token) * kPairs] = pack2(activate<TL_ACTIVATION>(sum.x), activate<TL_ACTIVATION>(sum.y));
  }
}
