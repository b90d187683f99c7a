// The planner of an encoder: decides which texts every step computes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

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
  double slice_seconds = 0.02;  // how long a step with long texts runs before others have their turn
};

// A step takes whole texts, in the order of Flows, up to the first one that does not fit: no text is cut, and none is
// passed. If steps have a time limit, they take as many tokens as it allows, but at least one text. Such steps, and
// others that take longer than kAwaitedSeconds, are awaited, so that a text which arrives meanwhile can be in the next
// one; shorter ones are launched ahead, as the device would wait for the host for a larger part of the time.
//
// If the executor can pause steps, nobody waits for all of somebody else's long text. A text is long if it does not fit
// beside a paused step. A step with long texts takes no short ones of other flows, and pauses after a slice of time:
// then short texts of other flows that have no lower priority are computed beside it, in one step. The next slice lasts
// at least as long as that step, so that the long texts get half of the time, however many short ones come.
//
// On a device where a step runs on while it is paused, it is paused as soon as there may be others, and has what they
// leave. Long texts pass short ones that may be computed beside their step. If only long texts wait behind a step that
// takes no longer than kAwaitedSeconds, it is not paused but followed at once.
//
// Throws std::invalid_argument for a config that contradicts itself.
class EncoderPlanner final : public Planner {
 public:
  static constexpr double kAwaitedSeconds = 5e-3;

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
  // A step that is paused.
  struct Paused {
    std::vector<StepRow> rows;
    std::vector<std::int32_t> token_ids;
    double seconds = 0;         // the time that it has run
    double beside_seconds = 0;  // the time of the step beside it since it last ran
    bool yields = true;         // the next step is for other texts, if there are some
  };

  void add_texts(StepBatch& batch, Clock::time_point now);
  bool is_awaited(const StepBatch& batch) const;
  bool is_slow(const StepBatch& batch) const;
  bool pays_to_pause(const StepBatch& batch) const;
  bool has_room(const StepBatch& batch, const Request& request) const;
  bool is_long(const Request& request) const;
  bool shares_step(const StepBatch& batch, const Request& request) const;
  bool any_alive(std::span<const StepRow> rows) const;
  void add_texts_beside(StepBatch& batch, Clock::time_point now);
  bool passes(const Request& request, std::span<const StepRow> rows) const;
  void go_on(StepBatch& batch) const;
  void add_row(StepBatch& batch, Texts::Index index, Clock::time_point now);

  const EncoderConfig config_;
  Texts texts_;
  StepPace pace_;
  double seconds_per_token_ = 0;  // of the last step that ran beside no other
  StepNumbers steps_;
  const StepBounds beside_;  // of steps beside a paused one
  const bool runs_while_paused_;
  std::optional<Paused> paused_;
  std::int64_t num_scheduled_tokens_ = 0;
};

}  // namespace tl
