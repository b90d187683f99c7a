#include "schedule/decoder/draft_rows.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tl {
namespace {

SecondsOfTokens known_seconds(const StepExecutor& executor) {
  if (executor.decode_seconds(1) == 0) return {};
  return [&executor](int num_tokens) { return executor.decode_seconds(num_tokens); };
}

}  // namespace

DraftRows::DraftRows(ScheduleState& state, const CostModel& costs)
    : state_(state), costs_(costs), cost_(known_seconds(state.executor)) {}

// Pauses of all requests end at the same steps, because a draft costs less if many rows of its step have drafts.
void DraftRows::wake(std::uint64_t step) {
  if (state_.requests.num_drafters() == 0 || step % DraftPace::kLeastRest != 0) return;
  for (const Index index : state_.requests.running()) {
    Request& request = state_.requests.table().request(index);
    if (Request::is_over(request.rest, step)) request.rest = 0;
    if (Request::is_over(request.forced_rest, step)) request.forced_rest = 0;
  }
}

void DraftRows::add(const StepShares& shares, StepWriter& step) {
  if (state_.requests.num_drafters() == 0) return;
  drafting_.clear();
  tasks_.clear();
  const RunningSet& order = state_.requests.running();
  if (state_.config.paces_drafts) row_price_ = cost_.of_row(order.num_rows(), kMaxDrafts);
  int num_left = step.budget() - (order.num_rows() - step.num_rows());
  for (const Index index : order) {
    if (step.num_rows() + std::ssize(drafting_) >= shares.num_decoding) break;
    const Running& running = state_.requests.table().running(index);
    if (!may_draft(running)) continue;
    const int most = most_drafts(running, num_left);
    if (ask(index, most, step)) num_left -= most;
  }
  if (tasks_.empty()) return;
  look_at_tasks(step.batch());
  const DraftTimes times = state_.config.drafter->draft(tasks_);
  cost_.observe_catching_up(times.num_caught_up, times.catching_up);
  step.batch().draft_seconds = times.drafting;
  for (std::size_t i = 0; i < drafting_.size(); ++i) {
    const DraftTask& task = tasks_[i];
    if (state_.config.paces_drafts) note_nothing(task);
    task.request.brings_forced = task.forced.value_or(false);
    step.add_row(drafting_[i], 1, task.drafts);
  }
}

void DraftRows::observe(const StepBatch& batch, const StepResult& result) {
  if (state_.requests.num_drafters() == 0) return;
  DecodeStep step{.num_rows = static_cast<int>(batch.rows.size()),
                  .seconds = result.compute_seconds,
                  .draft_seconds = batch.draft_seconds};
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    step.num_drafts += batch.rows[i].num_drafts;
    step.num_places = std::max(step.num_places, batch.rows[i].num_drafts);
    step.num_generated += result.rows[i].tokens.size();
  }
  if (batch.only_decodes()) cost_.observe(step);
  price_.reset();
  if (!cost_.known() || step.num_drafts == 0) return;
  price_ = cost_.of_row(step.num_rows, kMaxDrafts);
  price_->tokens += cost_.per_place() * step.num_places / step.num_drafts;
}

void DraftRows::learn(Request& request, const StepRow& row, int num_kept) {
  ++counters_.num_rows;
  for (int i = 0; i < row.num_drafts; ++i) {
    const auto place = static_cast<std::size_t>(i);
    ++counters_.num_drafted[place];
    counters_.num_accepted[place] += i < num_kept;
  }
  if (!state_.config.paces_drafts) return;
  if (request.brings_forced) {
    request.forced_rest = request.forced_pace.observe(row.num_drafts, num_kept, price_);
  } else {
    request.rest = request.pace.observe(row.num_drafts, num_kept, price_);
  }
}

bool DraftRows::may_draft(const Running& running) const {
  const Request& request = running.request();
  if (!request.drafts() || request.num_pending > 0 || request.late.rests) return false;
  return state_.blocks.remaining(running) == 1;
}

// Reserves positions for the newest token and its drafts, so that the drafter finds them in the block table, and makes
// the request's task. Returns false if there is no block for them.
bool DraftRows::ask(Index index, int most, StepWriter& step) {
  Running& running = state_.requests.table().running(index);
  if (!step.reserve_and_show(running, state_.blocks.cache().length(running.kv()) + 1 + most)) return false;
  drafting_.push_back(index);
  Request& request = running.request();
  tasks_.push_back({.request = request,
                    .state = request.draft_state.get(),
                    .slot = running.slot().index(),
                    .most = most,
                    .drafts = {}});
  return true;
}

// The most drafts for the request's next row, if the step's budget has `num_left` tokens left for drafts. Every
// running request reserves one token of the step's budget.
int DraftRows::most_drafts(const Running& running, int num_left) const {
  const Request& request = running.request();
  const int num_wanted = request.spec.max_new_tokens - request.num_generated();
  int most = std::max(std::min({request.max_draft_len, num_wanted - 1, num_left}), 0);
  if (state_.config.paces_drafts) most = paced(request, most);
  while (most > 0 && !fits(running, most)) --most;
  return most;
}

// Whether the cache has room for the request's next token and drafts: they take no block that a request may soon need.
bool DraftRows::fits(const Running& running, int num_drafts) const {
  const KvBlocks& blocks = state_.blocks;
  const KvCacheManager& cache = blocks.cache();
  const int num_missing = cache.num_missing(running.kv(), cache.length(running.kv()) + 1 + num_drafts);
  if (num_missing == 0) return true;
  const int num_ready = cache.device().num_ready();
  if (running.promise() != nullptr) return num_missing <= num_ready;
  const int kept = state_.requests.running().size() * cache.geometry().num_groups();
  return num_missing + kept <= std::min(blocks.num_free(false), num_ready);
}

// The number of drafts, forced or not, that is expected to pay off; at most `most`.
int DraftRows::paced(const Request& request, int most) const {
  if (!cost_.known()) return std::min(most, cost_.trial_len());
  const int proposed = request.rest == 0 ? request.pace.draft_len(row_price_, most) : 0;
  const int forced = request.forced_rest == 0 ? request.forced_pace.draft_len(row_price_, most) : 0;
  return std::max(proposed, forced);
}

// Asks for the forced tokens of all requests and, if a request does not pause drafting, for as many other drafts as
// pay off.
void DraftRows::look_at_tasks(const StepBatch& batch) {
  state_.config.drafter->look_at(batch, tasks_);
  for (DraftTask& task : tasks_) {
    if (!task.forced.value_or(false) && task.request.rest != 0) task.most = 0;
  }
  if (!state_.config.paces_drafts) return;
  if (cost_.known()) {
    for (DraftTask& task : tasks_) {
      const DraftPace& pace = task.forced.value_or(false) ? task.request.forced_pace : task.request.pace;
      task.most = pace.draft_len(row_price_, task.most);
    }
  }
  ask_within_budget();
  ask_for_what_pays(static_cast<int>(batch.token_ids.size() + tasks_.size()));
}

// Pauses drafting for requests that would take longer to catch up with than the time budget allows.
void DraftRows::ask_within_budget() {
  const double per_token =
      cost_.seconds_to_catch_up().value_or(state_.config.drafter->relative_cost() * costs_.prefill_seconds_per_token());
  double budget = cost_.catch_up_budget();
  for (DraftTask& task : tasks_) {
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
// tokens are exempt, because proposing them takes no time. The step has `num_others` tokens that are no drafts.
void DraftRows::ask_for_what_pays(int num_others) {
  const int num_places = num_paying_places(num_others);
  for (DraftTask& task : tasks_) {
    if (task.forced.value_or(false)) continue;
    if (task.most > 0 && num_places == 0) task.request.rest = task.request.pace.rest();
    task.most = std::min(task.most, num_places);
  }
}

// The number of drafts that pays off over all rows whose drafts take time. Places that do not pay may do so together
// with those after them, where a step's time grows by leaps.
int DraftRows::num_paying_places(int num_others) const {
  int num_places = 0, num_paying = num_others;  // places that pay, and tokens with their drafts
  int num_drafts = 0;                           // drafts of the places after those
  double num_kept = 0;                          // how many of them are expected to be accepted
  for (int place = 1; place <= kMaxDrafts; ++place) {
    int num_rows = 0;
    for (const DraftTask& task : tasks_) {
      if (task.most < place || task.forced.value_or(false)) continue;
      ++num_rows;
      num_kept += task.request.pace.kept(place);
    }
    if (num_rows == 0) break;
    num_drafts += num_rows;
    const DraftPrice price = cost_.price(num_paying, num_drafts, place - num_places);
    if (!DraftPace::pays(num_kept / num_drafts, price)) continue;
    num_places = place;
    num_paying += std::exchange(num_drafts, 0);
    num_kept = 0;
  }
  return num_places;
}

// Pauses a request's search for drafts after it found nothing.
void DraftRows::note_nothing(const DraftTask& task) {
  Request& request = task.request;
  if (task.forced == false) request.forced_rest = request.forced_pace.found_nothing();
  if (task.forced.value_or(false) || request.rest != 0) return;
  if (task.most > 0 && task.num_behind == 0 && task.drafts.empty()) request.rest = request.pace.found_nothing();
}

}  // namespace tl
