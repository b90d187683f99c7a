// Division of a step's time among prompts.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/decoder/schedule_state.h"
#include "schedule/decoder/step_shares.h"
#include "schedule/decoder/step_writer.h"
#include "schedule/step_pace.h"

namespace tl {

// Knows how many prompt tokens steps have time for, and gives prompts of running requests their chunks.
class Prefill {
 public:
  // Borrows `state`.
  explicit Prefill(const ScheduleState& state)
      : state_(state),
        pace_(state.config.enable_chunked_context ? state.config.step_seconds : 0, state.config.least_prefill) {}

  // The number of prompt tokens for which the step still has room and time.
  int budget(const StepWriter& step) const;
  // Whether prompts fill the step up to its time limit.
  bool fills(const StepWriter& step) const { return pace_.is_limited() && budget(step) == 0; }

  // Adds prompts of running requests that are so short that a step has time for two or more of them; they get half of
  // the step's time before longer ones. Waiting prompts may do the same: returns the part of the budget that they must
  // leave to others, empty if none has to pass others, because steps have no time limit or this one has time for all.
  std::optional<int> add_short_prompts(StepShares& shares, StepWriter& step) const;
  // Adds chunks of running requests' prompts.
  void add_chunks(StepShares& shares, StepWriter& step) const;

  // Learns from the time of a step that has ended.
  void observe(const StepBatch& batch, const StepResult& result);

 private:
  std::int64_t num_prefilling_tokens() const;

  const ScheduleState& state_;
  StepPace pace_;
};

}  // namespace tl
