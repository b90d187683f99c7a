// An adapter (LoRA) in the host's memory: what it adds to projections of one engine.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/low_rank_parts.h"
#include "host/low_rank_part.h"

namespace tl {

// Two row-major matrices: a [rank, in_features] and b [rank, out_features], any scale in one of them.
struct LowRankPair {
  std::span<const float> a;
  std::span<const float> b;
  std::int64_t rank = 0;
};

class Adapter {
 public:
  // Copies the matrices. `pairs` has those of the projections that it changes, by number. `key` tells adapters apart:
  // those of equal keys are equal. Throws LimitError for a projection, a rank or a size that the engine does not have.
  Adapter(LowRankShapes shapes, const std::map<std::int64_t, LowRankPair>& pairs, std::string key);
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  // For each projection of the engine what is added to it; of rank 0 where that is nothing.
  const LowRankPart* parts() const { return parts_.data(); }
  const LowRankShapes& shapes() const { return shapes_; }
  const std::string& key() const { return key_; }
  // The slot of the device's memory that holds it, set before a request runs with it.
  int slot() const { return slot_; }
  void set_slot(int slot) { slot_ = slot; }

 private:
  const LowRankShapes shapes_;
  std::vector<float> values_;
  std::vector<LowRankPart> parts_;
  std::string key_;
  int slot_ = -1;
};

}  // namespace tl
