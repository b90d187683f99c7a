// Preemption of running requests when blocks run out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "schedule/cost_model.h"
#include "schedule/decoder/lending.h"
#include "schedule/decoder/schedule_state.h"

namespace tl {

// Chooses whom to preempt by what computing or copying again would cost, and counts preemptions.
class Preemption {
 public:
  // Borrows the arguments.
  Preemption(ScheduleState& state, const CostModel& costs, Lending& lending)
      : state_(state), costs_(costs), lending_(lending) {}

  // Makes room for the next tokens of all running requests. Returns false if a request had to be preempted; its blocks
  // may be copied in the step of `batch`.
  bool make_room(StepBatch& batch);

  std::int64_t num_recomputed() const { return num_recomputed_; }
  std::int64_t num_swapped() const { return num_swapped_; }

 private:
  struct Victim {
    std::size_t position;  // in the order of running requests
    bool swap;
  };
  struct Loss {
    double seconds;
    bool swap;
  };

  int num_missing_blocks(const Running& running) const;
  int num_blocks_about_to_return() const;
  std::optional<Victim> choose_victim() const;
  Loss loss_of(const Running& running) const;
  void preempt(const Victim& victim, StepBatch& batch);

  ScheduleState& state_;
  const CostModel& costs_;
  Lending& lending_;
  std::int64_t num_recomputed_ = 0, num_swapped_ = 0;
};

}  // namespace tl
