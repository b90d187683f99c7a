// The planner of an encoder: decides which texts every step computes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "executor/step.h"
#include "schedule/encoder/texts.h"
#include "schedule/planner.h"
#include "schedule/step_numbers.h"
#include "schedule/step_pace.h"

namespace tl {

struct EncoderConfig {
  int max_batch_size = 0;   // the most texts of a step
  int max_num_tokens = 0;   // the most tokens of a step
  int max_input_len = 0;    // the most tokens of a text; at most max_num_tokens
  int ageing_window = 64;   // see Flows
  double step_seconds = 0;  // time limit of a step of several texts; 0: none
  int least_tokens = StepPace::kLeastPrefill;
};

// A step takes whole texts, in the order of Flows, up to the first one that does not fit: no text is cut, and none is
// passed. If steps have a time limit, they take as many tokens as it allows, but at least one text, and are awaited, so
// that a text which arrives meanwhile can be in the next one. Throws std::invalid_argument for a config that
// contradicts itself.
class EncoderPlanner final : public Planner {
 public:
  EncoderPlanner(const EncoderConfig& config, const StepExecutor& executor);

  void add(std::unique_ptr<Request> request) override { texts_.add(std::move(request)); }
  bool empty() const override { return texts_.size() == 0; }

  bool end(RequestId id, FinishReason reason, std::string message, Clock::time_point now, EventBatch& events) override;
  void expire(Clock::time_point now, EventBatch& events) override;
  void end_all(FinishReason reason, const std::string& message, Clock::time_point now, EventBatch& events) override;

  bool prepare(StepBatch& batch, Clock::time_point now, EventBatch& events) override;
  void launched(const StepBatch& batch) override { steps_.launched = batch.step; }
  void complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) override;
  // The texts of the first step end with the error; those of later ones wait again.
  void abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
               EventBatch& events) override;
  void reset(const std::string& message, Clock::time_point now, EventBatch& events) override;

  SchedulerStats stats() const override;
  void check_integrity() const override { texts_.check_integrity(); }

 private:
  bool has_room(const StepBatch& batch, const Request& request) const;
  void add_row(StepBatch& batch, Texts::Index index, Clock::time_point now);

  const EncoderConfig config_;
  Texts texts_;
  StepPace pace_;
  StepNumbers steps_;
  std::int64_t num_scheduled_tokens_ = 0;
};

}  // namespace tl
