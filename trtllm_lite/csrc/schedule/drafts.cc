// The part of the Scheduler that gives rows draft tokens.
#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "schedule/scheduler.h"

namespace tl {

// Ends the pauses that are over at this step. Pauses of all requests end at the same steps, because a draft costs less
// if many rows of its step have drafts.
void Scheduler::wake_drafters(std::uint64_t step) {
  if (num_drafters_ == 0 || step % DraftPace::kLeastRest != 0) return;
  for (const Index index : running_) {
    Request& request = table_.request(index);
    if (Request::is_over(request.rest, step)) request.rest = 0;
    if (Request::is_over(request.forced_rest, step)) request.forced_rest = 0;
  }
}

// Adds the newest token of every request that drafts, unless a step in flight is still sampling it.
void Scheduler::add_draft_rows(const Shares& shares, StepBatch& batch) {
  if (num_drafters_ == 0) return;
  drafting_.clear();
  drafts_.clear();
  int num_left = budget(batch) - (num_rows_ - static_cast<int>(batch.rows.size()));
  for (const Index index : running_) {
    if (std::ssize(batch.rows) + std::ssize(drafting_) >= shares.num_decoding) break;
    Running& running = table_.running(index);
    const Request& request = running.request();
    if (!request.drafts() || request.num_pending > 0 || remaining(running) != 1) continue;
    if (request.late.rests) continue;
    const int most = most_drafts(running, num_left);
    if (!ask_for_drafts(index, most, batch)) continue;
    num_left -= most;
  }
  if (drafts_.empty()) return;
  look_at_drafts(batch);
  const DraftTimes times = config_.drafter->draft(drafts_);
  draft_cost_.observe_catching_up(times.num_caught_up, times.catching_up);
  batch.draft_seconds = times.drafting;
  for (std::size_t i = 0; i < drafting_.size(); ++i) {
    const DraftTask& task = drafts_[i];
    if (config_.paces_drafts) note_nothing(task);
    task.request.brings_forced = task.forced.value_or(false);
    add_row(drafting_[i], 1, task.drafts, batch);
  }
}

// Asks for the forced tokens of all requests and, if a request does not pause drafting, for as many other drafts as
// pay off.
void Scheduler::look_at_drafts(const StepBatch& batch) {
  config_.drafter->look_at(batch, drafts_);
  for (DraftTask& task : drafts_) {
    if (!task.forced.value_or(false) && task.request.rest != 0) task.most = 0;
  }
  if (!config_.paces_drafts) return;
  if (draft_cost_.known()) {
    const double price = draft_cost_.prices().per_draft;
    for (DraftTask& task : drafts_) {
      const DraftPace& pace = task.forced.value_or(false) ? task.request.forced_pace : task.request.pace;
      task.most = pace.draft_len(price, task.most);
    }
  }
  ask_within_budget();
  ask_for_what_pays();
}

// Pauses a request's search for drafts after it found nothing.
void Scheduler::note_nothing(const DraftTask& task) {
  Request& request = task.request;
  if (task.forced == false) request.forced_rest = request.forced_pace.found_nothing();
  if (task.forced.value_or(false) || request.rest != 0) return;
  if (task.most > 0 && task.num_behind == 0 && task.drafts.empty()) request.rest = request.pace.found_nothing();
}

// Pauses drafting for requests that would take longer to catch up with than the time budget allows.
void Scheduler::ask_within_budget() {
  const double per_token =
      draft_cost_.seconds_to_catch_up().value_or(config_.drafter->relative_cost() * costs_.prefill_seconds_per_token());
  double budget = draft_cost_.catch_up_budget();
  for (DraftTask& task : drafts_) {
    if (task.most == 0 || task.num_behind == 0) continue;
    const double seconds = per_token * task.num_behind;
    if (seconds <= budget) {
      budget -= seconds;
    } else {
      task.most = 0;
      task.request.rest = DraftPace::kLeastRest;
    }
  }
}

// Asks each row for the number of drafts that pays off over all rows, and pauses the requests if no draft does. Forced
// tokens are exempt, because proposing them takes no time.
void Scheduler::ask_for_what_pays() {
  const DraftPrices prices = draft_cost_.prices();
  int num_places = 0;
  for (; num_places < kMaxDrafts; ++num_places) {
    int num_rows = 0;
    double num_kept = 0;
    for (const DraftTask& task : drafts_) {
      if (task.most <= num_places || task.forced.value_or(false)) continue;
      ++num_rows;
      num_kept += task.request.pace.kept(num_places + 1);
    }
    if (num_rows == 0 || !DraftPace::pays(num_kept / num_rows, prices.of_draft(num_rows))) break;
  }
  for (DraftTask& task : drafts_) {
    if (task.forced.value_or(false)) continue;
    if (task.most > 0 && num_places == 0) task.request.rest = task.request.pace.rest();
    task.most = std::min(task.most, num_places);
  }
}

// The most drafts for the request's next row, if the step's budget has `num_left` tokens left for drafts. Every
// running request reserves one token of the step's budget, and drafts take no block that a request may soon need.
int Scheduler::most_drafts(const Running& running, int num_left) const {
  const Request& request = running.request();
  const int num_wanted = request.spec.max_new_tokens - request.num_generated();
  int most = std::max(std::min({request.max_draft_len, num_wanted - 1, num_left}), 0);
  const int end = cache_.length(running.kv()) + 1;
  const auto fits = [&](int num_drafts) {
    const int num_missing = cache_.num_missing(running.kv(), end + num_drafts);
    if (num_missing == 0) return true;
    if (running.promise() != nullptr) return num_missing <= cache_.device().num_ready();
    const int kept = static_cast<int>(running_.size()) * cache_.geometry().num_groups();
    return num_missing + kept <= std::min(num_free(false), cache_.device().num_ready());
  };
  if (config_.paces_drafts) most = paced(request, most);
  while (most > 0 && !fits(most)) --most;
  return most;
}

// The number of drafts, forced or not, that is expected to pay off; at most `most`.
int Scheduler::paced(const Request& request, int most) const {
  if (!draft_cost_.known()) return std::min(most, draft_cost_.trial_len());
  const double price = draft_cost_.prices().per_draft;
  const int proposed = request.rest == 0 ? request.pace.draft_len(price, most) : 0;
  const int forced = request.forced_rest == 0 ? request.forced_pace.draft_len(price, most) : 0;
  return std::max(proposed, forced);
}

// Reserves positions for the newest token and its drafts, so that the drafter finds them in the block table. Returns
// false if there is no block for the token.
bool Scheduler::ask_for_drafts(Index index, int most, StepBatch& batch) {
  Running& running = table_.running(index);
  if (!reserve(running, running.kv(), cache_.length(running.kv()) + 1 + most, batch)) return false;
  const int slot = running.slot().index();
  if (cache_.take_changed(running.kv())) add_table_updates(slot, running.kv(), batch);
  drafting_.push_back(index);
  Request& request = running.request();
  drafts_.push_back({.request = request, .state = request.draft_state.get(), .slot = slot, .most = most, .drafts = {}});
  return true;
}

// Takes back the rejected drafts of a row in flight. A request that was preempted meanwhile has none.
void Scheduler::settle(const StepRow& row, const RowResult& result) {
  const int num_wrong = row.num_drafts + 1 - result.tokens.size();
  RequestState& state = table_.state(row.request.index);
  if (auto* running = std::get_if<Running>(&state)) {
    cache_.settle(running->kv(), num_wrong);
    leave_behind(*running, running->kv(), launched_);
  }
  if (auto* swapped = std::get_if<Swapped>(&state)) cache_.settle(swapped->kv(), num_wrong);
}

void Scheduler::count_drafts(const StepRow& row, int num_kept) {
  DraftCounters& counters = counters_.drafts;
  ++counters.num_rows;
  for (int i = 0; i < row.num_drafts; ++i) {
    const auto place = static_cast<std::size_t>(i);
    ++counters.num_drafted[place];
    counters.num_accepted[place] += i < num_kept;
  }
}

// Learns from a row's drafts whether the request should draft in its next rows.
void Scheduler::pace(const StepRow& row, int num_kept) {
  Request& request = table_.request(row.request.index);
  if (!config_.paces_drafts) return;
  if (request.brings_forced) {
    request.forced_rest = request.forced_pace.observe(row.num_drafts, num_kept, draft_price_);
  } else {
    request.rest = request.pace.observe(row.num_drafts, num_kept, draft_price_);
  }
}

void Scheduler::observe_drafts(const StepBatch& batch, const StepResult& result) {
  DecodeStep step{.num_rows = static_cast<int>(batch.rows.size()),
                  .seconds = result.compute_seconds,
                  .draft_seconds = batch.draft_seconds};
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    step.num_drafts += batch.rows[i].num_drafts;
    step.num_places = std::max(step.num_places, batch.rows[i].num_drafts);
    step.num_generated += result.rows[i].tokens.size();
  }
  if (batch.only_decodes()) draft_cost_.observe(step);
  draft_price_.reset();
  if (!draft_cost_.known() || step.num_drafts == 0) return;
  draft_price_ = draft_cost_.prices().of_draft(1.0 * step.num_drafts / step.num_places);
}

}  // namespace tl
