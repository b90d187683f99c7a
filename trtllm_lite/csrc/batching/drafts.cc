// The part of the Scheduler that lets rows bring drafts.
#include <algorithm>
#include <optional>
#include <variant>

#include "batching/scheduler.h"

namespace tl {

// Adds the newest token of every request that drafts, unless a step in flight samples it.
void Scheduler::add_draft_rows(StepBatch& batch) {
  if (!config_.make_drafter) return;
  for (const Index index : running_) {
    Running& running = table_.running(index);
    const Request& request = running.request();
    if (!request.drafts() || request.num_pending > 0 || remaining(running) != 1) continue;
    add_row(index, 1, drafts_for(running, batch), batch);
  }
}

// Drafts of the request's next row. Every running request keeps a token of the step's budget to itself, and drafts take
// no block that somebody may need before long.
TokenRun Scheduler::drafts_for(Running& running, const StepBatch& batch) const {
  Request& request = running.request();
  const int num_wanted = request.spec.max_new_tokens - request.num_generated();
  const int num_rows_left = num_rows_ - static_cast<int>(batch.rows.size());
  int most = std::min({request.max_draft_len, num_wanted - 1, budget(batch) - num_rows_left});
  const int end = cache_.length(running.kv()) + 1;
  const auto fits = [&](int num_drafts) {
    const int num_missing = cache_.num_missing(running.kv(), end + num_drafts);
    if (num_missing == 0) return true;
    if (running.promise() != nullptr) return num_missing <= cache_.device().num_ready();
    const int kept = static_cast<int>(running_.size()) * cache_.geometry().num_groups();
    return num_missing + kept <= std::min(num_free(false), cache_.device().num_ready());
  };
  if (config_.paces_drafts) {
    const std::optional<double> cost = draft_cost_.tokens_per_draft();
    most = std::min(most, cost ? request.pace.draft_len(*cost, request.max_draft_len) : draft_cost_.trial_len());
  }
  while (most > 0 && !fits(most)) --most;
  TokenRun drafts;
  if (most > 0) request.drafter->draft(request.tokens, most, drafts);
  return drafts;
}

// Notes how many drafts of a row in flight were kept. A request preempted meanwhile has nothing to take back.
void Scheduler::settle(const StepRow& row, int num_kept) {
  RequestState& state = table_.state(row.request.index);
  if (auto* running = std::get_if<Running>(&state)) {
    cache_.settle(running->kv(), num_kept);
    leave_behind(*running, running->kv(), launched_);
  }
  if (auto* swapped = std::get_if<Swapped>(&state)) cache_.settle(swapped->kv(), num_kept);
  DraftCounters& counters = counters_.drafts;
  ++counters.num_rows;
  for (int i = 0; i < row.num_drafts; ++i) {
    const auto place = static_cast<std::size_t>(i);
    ++counters.num_drafted[place];
    counters.num_accepted[place] += i < num_kept;
  }
}

// Learns from a row that has been sampled whether the request's next rows had better bring drafts.
void Scheduler::pace(const StepRow& row, int num_sampled) {
  Request& request = table_.request(row.request.index);
  if (request.num_plain > 0) request.num_plain = std::max(request.num_plain - num_sampled, 0);
  if (!config_.paces_drafts || !request.drafts() || !row.decodes() || row.num_generated == 0) return;
  request.num_plain = request.pace.observe(row.num_drafts, num_sampled - 1, draft_cost_.tokens_per_draft());
}

void Scheduler::observe_drafts(const StepBatch& batch, const StepResult& result) {
  int num_sampled = 0;
  for (const RowResult& row : result.rows) num_sampled += row.tokens.size();
  const auto num_rows = std::ssize(batch.rows);
  const auto num_drafts = std::ssize(batch.token_ids) - num_rows;  // as all rows decode
  draft_cost_.observe(static_cast<int>(num_rows), static_cast<int>(num_drafts), num_sampled, result.compute_seconds);
}

}  // namespace tl
