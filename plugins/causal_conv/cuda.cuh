// CausalConv: a convolution of TL_WIDTH taps along each sequence, of each channel by itself, after the inputs that the
// sequence's state has; x, weight and y have 16 bits, states and sums are float32.
//
// Bytes: 4 * channels a token, 4 * history * channels a sequence with an earlier state, and 4 * channels for each of
// the last tokens that its state keeps. Floor: bytes / bandwidth; for few tokens latency, about 2 us. A thread has
// kOfThread channels of TL_TOKENS successive tokens, of as many sequences as these belong to, keeps the last inputs in
// registers, and requests several tokens at a time. A block that starts within the first history tokens of a sequence
// leaves these to the block that has the first token: only that one reads and writes the state. All but the rows is
// read before the previous kernel ends, which writes rows of this step alone.
//
// Launch: grid = (channels / kOfThread / TL_THREADS, tokens / TL_TOKENS). Macros: TL_CHANNELS, TL_OF_THREAD (2 or 4
// channels, of which TL_CHANNELS is a multiple), TL_X_PITCH (elements from a row of x to the next, also a multiple),
// TL_WIDTH, TL_SLOTS (places of tokens in a state), TL_TOKENS, TL_THREADS (a multiple of 32), TL_ACTIVATION, TL_FP16,
// and those of state_span.cuh.
#include "cuda/activation.cuh"
#include "cuda/async.cuh"
#include "cuda/sequence_of.cuh"
#include "cuda/state_span.cuh"

namespace tl {

constexpr int kOfThread = TL_OF_THREAD, kParts = TL_CHANNELS / kOfThread, kPitch = TL_X_PITCH / kOfThread;
constexpr int kHistory = TL_WIDTH - 1;
// Tokens that are requested at a time; a decode step has as many of a sequence as may be taken back.
constexpr int kAtOnce = min_of(32 / kOfThread, max_of(TL_TOKENS, TL_SLOTS - kHistory));
// Blocks of a multiprocessor, whose threads together request what hides the latency of memory.
constexpr int kBlocksAtOnce = TL_WIDTH > 4 ? 1 : kAtOnce == 1 ? 8 : 5;
static_assert(TL_CHANNELS % kOfThread == 0 && TL_X_PITCH % kOfThread == 0 && TL_WIDTH > 1 && TL_SLOTS > kHistory);

// What a thread has of a row of x or y, and in float32.
struct alignas(2 * kOfThread) Packed {
  u32 pairs[kOfThread / 2];
};
struct alignas(4 * kOfThread) Part {
  float of[kOfThread];
};

__device__ __forceinline__ Part unpack(Packed bits) {
  Part part;
#pragma unroll
  for (int i = 0; i < kOfThread / 2; ++i) {
    const float2 pair = unpack2(bits.pairs[i]);
    part.of[2 * i] = pair.x;
    part.of[2 * i + 1] = pair.y;
  }
  return part;
}

// The last inputs, the oldest first.
struct History {
  Part inputs[kHistory];

  __device__ __forceinline__ void push(Part input) {
#pragma unroll
    for (int j = 0; j + 1 < kHistory; ++j) inputs[j] = inputs[j + 1];
    inputs[kHistory - 1] = input;
  }
};

// The kernels of a thread's channels, and what is added to their sums.
struct Kernels {
  Part taps[TL_WIDTH], bias;

  __device__ __forceinline__ Kernels(const u16* weight, const float* added, int part) {
    Packed words[TL_WIDTH];  // of one channel after the other
#pragma unroll
    for (int i = 0; i < TL_WIDTH; ++i) words[i] = reinterpret_cast<const Packed*>(weight)[part * TL_WIDTH + i];
#pragma unroll
    for (int i = 0; i < TL_WIDTH; ++i) {
      const Part unpacked = unpack(words[i]);
#pragma unroll
      for (int k = 0; k < kOfThread; ++k) {
        const int at = i * kOfThread + k;
        taps[at % TL_WIDTH].of[at / TL_WIDTH] = unpacked.of[k];
      }
    }
    bias = added ? reinterpret_cast<const Part*>(added)[part] : Part{};
  }
  __device__ __forceinline__ Packed result(const History& before, Part input) const {
    Part sums = bias;
#pragma unroll
    for (int k = 0; k < kOfThread; ++k) {
#pragma unroll
      for (int j = 0; j < kHistory; ++j) sums.of[k] = fmaf(taps[j].of[k], before.inputs[j].of[k], sums.of[k]);
      sums.of[k] = activate<TL_ACTIVATION>(fmaf(taps[kHistory].of[k], input.of[k], sums.of[k]));
    }
    Packed packed;
#pragma unroll
    for (int i = 0; i < kOfThread / 2; ++i) packed.pairs[i] = pack2(sums.of[2 * i], sums.of[2 * i + 1]);
    return packed;
  }
};

// Where the inputs of a thread's channels at a position are in the state of a sequence.
__device__ __forceinline__ Part* stored(const StatePlaces& places, int block, int position, int part) {
  return reinterpret_cast<Part*>(places.state(block) + position % TL_SLOTS * TL_CHANNELS) + part;
}

// The last inputs before the new tokens of a sequence.
__device__ __forceinline__ History stored_inputs(const StatePlaces& places, StateSpan span, int part) {
  History before;
#pragma unroll
  for (int j = 0; j < kHistory; ++j) {
    const int position = span.past - kHistory + j;
    before.inputs[j] = position < 0 ? Part{} : *stored(places, span.block, position, part);
  }
  return before;
}

// Adds the last inputs of a sequence's new tokens to its state. x: the thread's channels of token 0.
__device__ __forceinline__ void store_inputs(const StatePlaces& places, const Packed* x, StateSpan span, int part) {
  constexpr int kPiece = min_of(TL_SLOTS, 8);
#pragma unroll 1
  for (int begin = max_of(span.count - TL_SLOTS, 0); begin < span.count; begin += kPiece) {
    Packed inputs[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (begin + i < span.count) inputs[i] = x[static_cast<u64>(span.first + begin + i) * kPitch];
    }
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (begin + i < span.count) *stored(places, span.block, span.past + begin + i, part) = unpack(inputs[i]);
    }
  }
}

// The tokens of a sequence that a block has: those from `begin` to `end` - 1, but without the first ones of a sequence
// that begins before them, and with those of one that begins among them.
struct Run {
  int token, until;

  __device__ __forceinline__ Run(StateSpan span, int begin, int end) {
    const int next = span.first + span.count, of_first = min_of(next, span.first + kHistory);
    token = span.first >= begin ? span.first : max_of(begin, of_first);
    until = next <= end ? next : max_of(end, of_first);
  }
};

}  // namespace tl

extern "C" __global__ void __launch_bounds__(TL_THREADS, tl::kBlocksAtOnce)
    causal_conv(tl::Packed* y, float* states, const int* cu_seqlens, const int* past_lens, const int* tables,
                int table_stride, const tl::Packed* x, const tl::u16* weight, const float* bias, int num_seqs,
                int num_tokens) {
  using namespace tl;
  const StatePlaces places{states, cu_seqlens, past_lens, tables, table_stride};
  const int part = blockIdx.x * TL_THREADS + threadIdx.x, begin = static_cast<int>(blockIdx.y) * TL_TOKENS;
  const int end = min_of(begin + TL_TOKENS, num_tokens);
  int seq = sequence_of_warp(begin, cu_seqlens, num_seqs);
  if (part >= kParts) {
    wait_for_previous_kernel();
    return;
  }
  StateSpan span = places.of(seq);
  bool begins = span.first == begin;
  History history;
  if (begins) history = stored_inputs(places, span, part);
  const Kernels kernels(weight, bias, part);
  wait_for_previous_kernel();
  allow_next_kernel();
  x += part;
  y += part;
  while (true) {
    Run run(span, begin, end);
    if (!begins && run.token < run.until) {
#pragma unroll
      for (int j = 0; j < kHistory; ++j) {
        history.inputs[j] = unpack(x[static_cast<u64>(run.token - kHistory + j) * kPitch]);
      }
    }
#pragma unroll 1
    for (; run.token < run.until; run.token += kAtOnce) {
      Packed inputs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (run.token + i < run.until) inputs[i] = x[static_cast<u64>(run.token + i) * kPitch];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (run.token + i >= run.until) break;
        const Part input = unpack(inputs[i]);
        y[static_cast<u64>(run.token + i) * kParts] = kernels.result(history, input);
        history.push(input);
      }
    }
    if (begins) store_inputs(places, x, span, part);
    if (span.first + span.count >= end) return;
    do span = places.of(++seq);
    while (span.count == 0);
    begins = true;
    history = stored_inputs(places, span, part);
  }
}
