// Drafting methods that use only the tokens of one sequence.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "drafts/drafter.h"
#include "schedule/request.h"

namespace tl {

// The drafter of one request.
class SequenceDrafter : public DraftState {
 public:
  // Appends up to `most` tokens that may follow `tokens`, which begin with those of the previous call.
  virtual void draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) = 0;
  // See Drafter::end.
  virtual void end(std::span<const std::int32_t> generated) { (void)generated; }
};

// Calls the drafter of each request. The calls take microseconds, which count as the host's time.
class SequenceDrafters final : public Drafter {
 public:
  using Make = std::function<std::unique_ptr<SequenceDrafter>(const Request&)>;
  explicit SequenceDrafters(Make make) : make_(std::move(make)) {}

  std::unique_ptr<DraftState> start(const Request& request) override { return make_(request); }
  double relative_cost() const override { return 0; }
  void look_at(const StepBatch&, std::span<DraftTask>) override {}
  DraftTimes draft(std::span<DraftTask> tasks) override {
    for (DraftTask& task : tasks) {
      if (task.most > 0) of(*task.state).draft(task.request.tokens, task.most, task.drafts);
    }
    return {};
  }
  void launched(const StepBatch&) override {}
  void end(DraftState& state, std::span<const std::int32_t> generated) override { of(state).end(generated); }

 private:
  static SequenceDrafter& of(DraftState& state) { return static_cast<SequenceDrafter&>(state); }

  Make make_;
};

}  // namespace tl
