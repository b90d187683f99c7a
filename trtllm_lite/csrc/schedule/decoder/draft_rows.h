// Rows that bring draft tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "drafts/draft_pace.h"
#include "schedule/cost_model.h"
#include "schedule/decoder/schedule_state.h"
#include "schedule/decoder/step_shares.h"
#include "schedule/decoder/step_writer.h"
#include "schedule/scheduler_stats.h"

namespace tl {

// Asks the drafter for drafts, as many as pay off, and learns from their fate. Knows what drafts cost, and which
// requests draft in the step in preparation.
class DraftRows {
 public:
  // Borrows the arguments.
  DraftRows(ScheduleState& state, const CostModel& costs);

  // Ends the pauses that are over at this step.
  void wake(std::uint64_t step);
  // Adds the newest token and drafts of every request that drafts, unless a step in flight is still sampling the token.
  void add(const StepShares& shares, StepWriter& step);

  // Learns from the time of a step that has ended what drafts cost, and what each of its own did.
  void observe(const StepBatch& batch, const StepResult& result);
  // Learns from a row of that step, of whose drafts `num_kept` were accepted, whether the request should draft in its
  // next rows.
  void learn(Request& request, const StepRow& row, int num_kept);

  const DraftCounters& counters() const { return counters_; }

 private:
  using Index = RequestTable::Index;

  bool may_draft(const Running& running) const;
  bool ask(Index index, int most, StepWriter& step);
  int most_drafts(const Running& running, int num_left) const;
  bool fits(const Running& running, int num_drafts) const;
  int paced(const Request& request, int most) const;
  void look_at_tasks(const StepBatch& batch);
  void ask_within_budget();
  void ask_for_what_pays(int num_others);
  int num_paying_places(int num_others) const;
  static void note_nothing(const DraftTask& task);

  ScheduleState& state_;
  const CostModel& costs_;
  DraftCost cost_;
  DraftPrice row_price_;             // of drafts of a row in the step in preparation
  std::optional<DraftPrice> price_;  // of drafts of a row in the step whose results are taken
  std::vector<Index> drafting_;      // requests that draft in the step in preparation
  std::vector<DraftTask> tasks_;     // tasks of `drafting_`
  DraftCounters counters_;
};

}  // namespace tl
