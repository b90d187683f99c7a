// What an adapter (LoRA) adds to one projection of a model.
#pragma once

#include <cstdint>

namespace tl {

// b.T @ (a @ x), of a [rank, in_features] and b [rank, out_features], whose rank may be 0. Adapters have one for each
// projection that the engine lets them change.
struct LowRankPart {
  const float* a = nullptr;
  const float* b = nullptr;
  std::int64_t rank = 0;
};

}  // namespace tl
