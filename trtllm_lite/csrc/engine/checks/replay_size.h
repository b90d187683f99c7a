// Checks the size of states whose last tokens are replayed (plugins/replay.py).
#pragma once

#include <cstdint>
#include <string>

#include "engine/records.h"

namespace tl {

constexpr std::int64_t kReplayAlignment = 8;  // words of 4 bytes

// Returns what is wrong with a layer's `state`, or nothing: each head has a matrix of `num_elements` of the state's
// type in whole words of 4 bytes, `num_words` more, and what makes them a multiple of kReplayAlignment.
inline std::string check_replay_size(const PlanTensor& state, std::int64_t num_elements, std::int64_t num_words) {
  const std::int64_t of_word = state.dtype == DType::kFloat32 ? 1 : 2;
  const std::int64_t words = (num_elements + of_word - 1) / of_word + num_words;
  const std::int64_t expected = (words + kReplayAlignment - 1) / kReplayAlignment * kReplayAlignment * of_word;
  const std::int64_t found = state.shape[2].value;
  if (found == expected) return "";
  return "state_size: expected " + std::to_string(expected) + " elements, found " + std::to_string(found);
}

}  // namespace tl
