// What a recurrent layer keeps of a sequence in each head: plugins/replay.py says why, and in which order.
//
// Macros: TL_KEY_DIM, TL_VALUE_DIM, TL_DECAY_DIM, TL_REPLAYED, TL_TAKEN_BACK, TL_STATE_WORDS, from one head to the
// next, and TL_STATE_FORM, the type of the matrix: 0 for float32, 1 for float16, 2 for bfloat16. All else is float32;
// sizes count its words.
#pragma once

#include "cuda/state_span.cuh"

namespace tl {

constexpr int kSlots = TL_REPLAYED + TL_TAKEN_BACK;
constexpr int kElementsOfWord = TL_STATE_FORM == 0 ? 1 : 2;
constexpr int kKeysAt = ceil_div(TL_KEY_DIM * TL_VALUE_DIM, kElementsOfWord);
constexpr int kUpdatesAt = kKeysAt + kSlots * TL_KEY_DIM;
constexpr int kDecaysAt = kUpdatesAt + kSlots * TL_VALUE_DIM, kLengthAt = kDecaysAt + kSlots * TL_DECAY_DIM;
constexpr int kStateSize = TL_STATE_WORDS;
static_assert(kLengthAt < kStateSize && kStateSize % 8 == 0, "a head begins at a multiple of 32 bytes");

// The type of the elements of the matrix. Rounding makes the largest number of what would become infinite; NaN stays
// NaN.
#if TL_STATE_FORM == 0
using StateElement = float;
__device__ __forceinline__ float narrow_element(float x) { return x; }
__device__ __forceinline__ float widen_element(float x) { return x; }
#else
using StateElement = u16;
__device__ __forceinline__ u16 narrow_element(float x) {
  constexpr float kLargest = TL_STATE_FORM == 1 ? 65504.0f : 3.38953139e38f;
  const float within = x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
  u32 bits;
#if TL_STATE_FORM == 1
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(within));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(0.0f), "f"(within));
#endif
  return static_cast<u16>(bits);
}
__device__ __forceinline__ float widen_element(u16 bits) {
#if TL_STATE_FORM == 1
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
#else
  return __uint_as_float(static_cast<u32>(bits) << 16);
#endif
}
#endif

// What is left of an element of the matrix wherever it has a multiple of TL_REPLAYED tokens, whether or not it is
// stored there: so all forms of a rule give the same bits.
__device__ __forceinline__ float kept_element(float x) { return widen_element(narrow_element(x)); }

// The state of a head of a sequence, and where the step's tokens lie in it.
struct ReplayState {
  float* state;
  int past, end;
  float stored_length;
  int length, next_length;  // tokens in the stored matrix before the step and after it, once settle() was called

  // `of_head`: the elements of the head, `stored`: its length. What is stored of a new sequence is not read.
  __device__ __forceinline__ ReplayState(float* of_head, StateSpan span, float stored)
      : state(of_head), past(span.past), end(span.end()), stored_length(stored) {}
  // Requests the length.
  __device__ __forceinline__ ReplayState(float* of_head, StateSpan span)
      : ReplayState(of_head, span, span.past > 0 ? of_head[kLengthAt] : 0.0f) {}

  // Waits for the length.
  __device__ __forceinline__ void settle(StateSpan span) {
    // A step that is timed may find a state that no step has written; it must not lead outside of memory.
    length = past > 0 ? min_of(past, max_of(past - kSlots, static_cast<int>(stored_length))) : 0;
    const int settled = past + (span.count > TL_TAKEN_BACK ? span.count - TL_TAKEN_BACK : 0);
    const int whole = settled / TL_REPLAYED * TL_REPLAYED;
    next_length = whole > length ? whole : length;
  }

  // The length that a sequence most likely has before a step. Where drafts were taken back, it may be another.
  static __device__ __forceinline__ int likely_length(StateSpan span) {
    return max_of(0, span.past - min_of(1, TL_TAKEN_BACK)) / TL_REPLAYED * TL_REPLAYED;
  }

  __device__ __forceinline__ const StateElement* elements() const {
    return reinterpret_cast<const StateElement*>(state);
  }
  // Element i of the matrix.
  __device__ __forceinline__ float element(u64 i) const { return widen_element(elements()[i]); }
  __device__ __forceinline__ void store_element(u64 i, float x) const {
    reinterpret_cast<StateElement*>(state)[i] = narrow_element(x);
  }

  // Whether the token at a position comes with the step; earlier ones are in the state.
  __device__ __forceinline__ bool is_new(int position) const { return position >= past; }
  // Whether a step's token stays in the state behind the matrix.
  __device__ __forceinline__ bool keeps(int position) const { return is_new(position) && position >= next_length; }
  __device__ __forceinline__ float* key(int position) const { return state + kKeysAt + position % kSlots * TL_KEY_DIM; }
  __device__ __forceinline__ float* update(int position) const {
    return state + kUpdatesAt + position % kSlots * TL_VALUE_DIM;
  }
  __device__ __forceinline__ float* decay(int position) const {
    return state + kDecaysAt + position % kSlots * TL_DECAY_DIM;
  }
  __device__ __forceinline__ void store_length() const { state[kLengthAt] = static_cast<float>(next_length); }
};

}  // namespace tl
