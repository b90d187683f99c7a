// CausalConv: a convolution of TL_WIDTH taps along each sequence, of each channel by itself, after the inputs that the
// sequence's state has; x, weight and y have 16 bits, states and sums are float32.
//
// Bytes: 8 * channels a token, and 4 * history * channels a sequence. Floor: bytes / bandwidth; for few tokens latency,
// about 2 us. A thread has two channels of TL_TOKENS successive tokens, of as many sequences as these belong to, and
// keeps the last inputs in registers; it requests several tokens at a time. A block that starts within the first
// history tokens of a sequence leaves these to the block that has the first token: only that one reads and writes the
// state. All but the rows is read before the previous kernel ends, which writes rows of this step alone.
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
constexpr int kAtOnce = min_of(16, TL_TOKENS);  // tokens that are requested
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

// Where the inputs of two channels at a position are in the state of a sequence.
__device__ __forceinline__ float* stored(const StatePlaces& places, int block, int position, int pair) {
  return places.state(block) + position % TL_SLOTS * TL_CHANNELS + 2 * pair;
}

// The last inputs before the new tokens of a sequence.
__device__ __forceinline__ History stored_inputs(const StatePlaces& places, StateSpan span, int pair) {
  History before;
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    const int position = span.past - kHistory + j;
    const float* const from = position < 0 ? nullptr : stored(places, span.block, position, pair);
    before.inputs[j] = from ? make_float2(from[0], from[1]) : make_float2(0.0f, 0.0f);
  }
  return before;
}

// Adds the inputs of a sequence's new tokens to its state. x: the channels of token 0.
__device__ __forceinline__ void store_inputs(const StatePlaces& places, const u32* x, StateSpan span, int pair) {
  for (int i = span.count > TL_SLOTS ? span.count - TL_SLOTS : 0; i < span.count; ++i) {
    const float2 input = unpack2(x[static_cast<u64>(span.first + i) * kPitch]);
    float* const to = stored(places, span.block, span.past + i, pair);
    to[0] = input.x;
    to[1] = input.y;
  }
}

}  // namespace tl

extern "C" __global__ void causal_conv(tl::u32* y, float* states, const int* cu_seqlens, const int* past_lens,
                                       const int* tables, int table_stride, const tl::u32* x, const tl::u16* weight,
                                       const float* bias, int num_seqs, int num_tokens) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  const int pair = blockIdx.x * blockDim.x + threadIdx.x, begin = static_cast<int>(blockIdx.y) * TL_TOKENS;
  int token = first_token(begin, cu_seqlens, num_seqs, num_tokens);
  const int end = first_token(begin + TL_TOKENS, cu_seqlens, num_seqs, num_tokens);
  if (pair >= kPairs || token >= end) {
    wait_for_previous_kernel();
    return;
  }
  int seq = sequence_of(token, cu_seqlens, num_seqs);
  History history;
  const bool begins = token == cu_seqlens[seq];
  if (begins) history = stored_inputs(places, places.of(seq), pair);
  float2 taps[TL_WIDTH];
#pragma unroll
  for (int j = 0; j < TL_WIDTH; ++j) {
    const u16* of_channel = weight + 2 * pair * TL_WIDTH + j;
    taps[j] = make_float2(unpack1(of_channel[0]), unpack1(of_channel[TL_WIDTH]));
  }
  const float2 start = bias ? make_float2(bias[2 * pair], bias[2 * pair + 1]) : make_float2(0.0f, 0.0f);
  wait_for_previous_kernel();
  allow_next_kernel();
  x += pair;
  y += pair;
  if (begins) {
    store_inputs(places, x, places.of(seq), pair);
  } else {
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      history.inputs[j] = unpack2(x[static_cast<u64>(token - kHistory + j) * kPitch]);
    }
  }
  while (true) {
    const int until = min_of(end, cu_seqlens[seq + 1]);
    for (; token < until; token += kAtOnce) {
      u32 inputs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) inputs[i] = token + i < until ? x[static_cast<u64>(token + i) * kPitch] : 0;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (token + i >= until) break;
        const float2 input = unpack2(inputs[i]);
        float2 sum = start;
#pragma unroll
        for (int j = 0; j < kHistory; ++j) {
          sum.x = fmaf(taps[j].x, history.inputs[j].x, sum.x);
          sum.y = fmaf(taps[j].y, history.inputs[j].y, sum.y);
        }
        sum.x = fmaf(taps[kHistory].x, input.x, sum.x);
        sum.y = fmaf(taps[kHistory].y, input.y, sum.y);
        history.push(input);
        const float2 result = make_float2(activate<TL_ACTIVATION>(sum.x), activate<TL_ACTIVATION>(sum.y));
        y[static_cast<u64>(token + i) * kPairs] = pack2(result.x, result.y);
      }
    }
    token = until;
    if (token >= end) return;
    while (cu_seqlens[seq + 1] <= token) ++seq;
    history = stored_inputs(places, places.of(seq), pair);
    store_inputs(places, x, places.of(seq), pair);
  }
}
