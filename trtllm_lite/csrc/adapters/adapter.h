// An adapter (LoRA) in host memory: what it adds to the projections of an engine.
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

// The matrices of one projection as in a file: a [rank, in_features] and b [out_features, rank]. b is to be multiplied
// by `scale`. Messages call the projection `name`.
struct LowRankPair {
  std::string name;
  StoredMatrix a;
  StoredMatrix b;
  float scale = 1.0f;
};

// The matrices of one projection in 16 bits, as GPUs read them, with b multiplied by the scale.
struct HalfPart {
  const std::byte* a = nullptr;
  const std::byte* b = nullptr;
  std::int64_t rank = 0;
};

class Adapter {
 public:
  // Converts the matrices to the types of `shapes`, on several threads. `pairs`: the changed projections, by number.
  // `key`: identifies the adapter; adapters with equal keys are equal. Throws LimitError if the engine lacks a
  // projection or does not allow a rank or size, EngineError for elements that are not finite.
  Adapter(LowRankShapes shapes, const std::map<std::int64_t, LowRankPair>& pairs, std::string key);
  Adapter(const Adapter&) = delete;
  Adapter& operator=(const Adapter&) = delete;

  // For each projection of the engine, what the adapter adds to it; rank 0 if nothing. parts() is for CPU engines,
  // half_parts() for GPU engines.
  const LowRankPart* parts() const { return parts_.data(); }
  const HalfPart* half_parts() const { return half_parts_.data(); }
  const LowRankShapes& shapes() const { return shapes_; }
  // Throws LimitError if the adapter was made for an engine of other shapes.
  void check_made_for(const LowRankShapes& shapes) const;
  const std::string& key() const { return key_; }
  // The adapter's slot in the device's memory, set before a request runs with it.
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
