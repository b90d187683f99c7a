// What a recurrent layer keeps of a sequence in each head: plugins/replay.py says why, and in which order.
//
// Macros: TL_KEY_DIM, TL_VALUE_DIM, TL_DECAY_DIM, TL_REPLAYED, TL_TAKEN_BACK.
#pragma once

#include "cuda/state_span.cuh"

namespace tl {

constexpr int kSlots = TL_REPLAYED + TL_TAKEN_BACK;
constexpr int kKeysAt = TL_KEY_DIM * TL_VALUE_DIM, kUpdatesAt = kKeysAt + kSlots * TL_KEY_DIM;
constexpr int kDecaysAt = kUpdatesAt + kSlots * TL_VALUE_DIM, kLengthAt = kDecaysAt + kSlots * TL_DECAY_DIM;
constexpr int kStateSize = kLengthAt + 1;

// The state of a head of a sequence, and where the step's tokens lie in it.
struct ReplayState {
  float* state;
  int past, end;
  int length, next_length;  // tokens in the stored matrix before the step and after it

  // `of_head`: the elements of the head.
  __device__ __forceinline__ ReplayState(float* of_head, StateSpan span)
      : state(of_head), past(span.past), end(span.end()) {
    // A step that is timed may find a state that no step has written; it must not lead outside of memory.
    length = past > 0 ? min_of(past, max_of(past - kSlots, static_cast<int>(state[kLengthAt]))) : 0;
    const int settled = past + (span.count > TL_TAKEN_BACK ? span.count - TL_TAKEN_BACK : 0);
    const int whole = settled / TL_REPLAYED * TL_REPLAYED;
    next_length = whole > length ? whole : length;
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
