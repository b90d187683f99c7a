// An adapter (LoRA) in the host's memory: what it adds to projections of one engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "adapters/convert_matrix.h"
#include "engine/low_rank_parts.h"
#include "host/anonymous_memory.h"
#include "host/low_rank_part.h"

namespace tl {

// What a file has of one projection: a [rank, in_features] and b [out_features, rank], which is to be multiplied with
// `scale`. Messages call the projection `name`.
struct LowRankPair {
  std::string name;
  StoredMatrix a;
  StoredMatrix b;
  float scale = 1.0f;
};

// The same in 16 bits, as GPUs read it, with the scale in b.
struct HalfPart {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::int64_t rank = 0;
};

class Adapter {
 public:
  // Converts the matrices to the types of `shapes`, on several threads. `pairs` has those of the projections that it
  // changes, by number. `key` tells adapters apart: those of equal keys are equal. Throws LimitError for a projection,
  // a rank or a size that the engine does not have, EngineError for elements that are not finite.
  Adapter(LowRankShapes shapes, const std::map<std::int64_t, LowRankPair>& pairs, std::string key);
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  // For each projection of the engine what is added to it; of rank 0 where that is nothing. An engine for CPUs reads
  // parts, one for GPUs half_parts.
  const LowRankPart* parts() const { return parts_.data(); }
  const HalfPart* half_parts() const { return half_parts_.data(); }
  const LowRankShapes& shapes() const { return shapes_; }
  // Throws LimitError if it was made for an engine of other shapes than these.
  void check_made_for(const LowRankShapes& shapes) const;
  const std::string& key() const { return key_; }
  // The slot of the device's memory that holds it, set before a request runs with it.
  int slot() const { return slot_; }
  void set_slot(int slot) { slot_ = slot; }

 private:
  const LowRankShapes shapes_;
  AnonymousMemory values_;
  std::vector<LowRankPart> parts_;
  std::vector<HalfPart> half_parts_;
  std::string key_;
  int slot_ = -1;
};

}  // namespace tl
