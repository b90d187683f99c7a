// The projections of an engine that adapters may change, as described by the calls of its plan or, on a GPU, by the
// adapter slots.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/records.h"

namespace tl {

struct LowRankShape {
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  DType dtype = DType::kFloat32;  // type of an adapter's matrices as steps read them
  friend bool operator==(const LowRankShape&, const LowRankShape&) = default;
};

struct LowRankShapes {
  std::vector<LowRankShape> parts;  // the projections by number
  std::int64_t max_rank = 0;        // the largest rank of an adapter; 0 if the engine takes no adapters
  friend bool operator==(const LowRankShapes&, const LowRankShapes&) = default;
};

constexpr std::int64_t kAdapterUnit = 256;  // bytes of the unit of Symbol::kAdapterStride

// The shapes of adapters that an engine with this plan takes. Throws EngineError if the plan's calls do not number the
// projections from 0 on, each once, or differ in their rank, or if the adapter slots of a GPU's products do not have
// the shapes of an adapter's matrices.
LowRankShapes low_rank_shapes(const Plan& plan);

}  // namespace tl
