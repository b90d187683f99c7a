// What an adapter (LoRA) adds to one projection of a model.
#pragma once

#include <cstdint>

namespace tl {

// Adds b.T @ (a @ x), with a [rank, in_features] and b [rank, out_features]; rank may be 0. An adapter has a part for
// each projection that the engine lets adapters change.
struct LowRankPart {
  const float* a = nullptr;
  const float* b = nullptr;
  std::int64_t rank = 0;
};

}  // namespace tl
