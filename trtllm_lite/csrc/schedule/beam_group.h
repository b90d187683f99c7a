// The sequences of a running beam search.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "caches/kv_cache_manager.h"
#include "executor/beam_move.h"
#include "schedule/slot_pool.h"

namespace tl {

struct Beam {
  std::int32_t slot;   // the slot that holds this beam's block table
  KvSequence kv;       // holds all tokens of the beam but the newest
  std::int32_t token;  // the newest token
};

// Beams share blocks up to the point where they diverge: the blocks of the prompt, whose sequence the request keeps,
// and those of common ancestors. A beam's first child takes over its sequence and slot; its other children fork the
// sequence.
class BeamGroup {
 public:
  // Takes one slot for each beam: `own_slot`, which the request keeps, and `others`.
  BeamGroup(std::int32_t own_slot, std::vector<Slot> others);

  // The beams, best first; empty before the prompt is computed.
  std::span<const Beam> beams() const { return beams_; }
  // Whether the beams that the next step continues are known. Once that step is launched, they are unknown until
  // move().
  bool ready() const { return !beams_.empty() && !in_flight_; }
  void launched() { in_flight_ = true; }

  // Sets the beams of the next step, which continue those of the last step, or `prompt` if there are none.
  void move(std::span<const BeamMove> moves, const KvSequence& prompt, KvCacheManager& cache);

 private:
  std::vector<Slot> others_;
  std::vector<std::int32_t> free_;  // slots without a beam
  std::vector<Beam> beams_;
  bool in_flight_ = false;
};

}  // namespace tl
