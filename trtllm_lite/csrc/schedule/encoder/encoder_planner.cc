#include "schedule/encoder/encoder_planner.h"

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <stdexcept>
#include <utility>

namespace tl {
namespace {

// How many waiting texts are looked at for a step beside a paused one. Texts of callers that have been served little
// are among the first, so that the others need not be sought.
constexpr int kMostSought = 64;

EncoderConfig checked(const EncoderConfig& config) {
  const bool is_valid = config.max_batch_size >= 1 && config.max_input_len >= 1 && config.ageing_window >= 1 &&
                        config.max_num_tokens >= config.max_input_len;
  if (is_valid) return config;
  throw std::invalid_argument(
      "encoder: max_batch_size, max_input_len and ageing_window must be at least 1, and max_num_tokens (" +
      std::to_string(config.max_num_tokens) + ") at least max_input_len (" + std::to_string(config.max_input_len) +
      ")");
}

}  // namespace

EncoderPlanner::EncoderPlanner(const EncoderConfig& config, const StepExecutor& executor)
    : config_(checked(config)),
      texts_(config.ageing_window, config.max_input_len),
      pace_(config.step_seconds, config.least_tokens),
      steps_{.num_stages = executor.num_stages()},
      beside_(executor.beside_paused()),
      runs_while_paused_(executor.runs_while_paused()) {}

bool EncoderPlanner::end(RequestId id, FinishReason reason, std::string message, Clock::time_point now,
                         EventBatch& events) {
  const auto index = texts_.find(id);
  if (index) texts_.end(*index, reason, std::move(message), {now, events});
  return index.has_value();
}

void EncoderPlanner::expire(Clock::time_point now, EventBatch& events) {
  while (const auto index = texts_.deadlines().passed(now)) {
    texts_.end(*index, FinishReason::kTimedOut, {}, {now, events});
  }
}

void EncoderPlanner::end_all(FinishReason reason, const std::string& message, Clock::time_point now,
                             EventBatch& events) {
  for (const auto index : texts_.all()) texts_.end(index, reason, message, {now, events});
}

bool EncoderPlanner::prepare(StepBatch& batch, Clock::time_point now, EventBatch&) {
  batch.clear();
  batch.step = steps_.launched + 1;
  if (paused_ && !runs_while_paused_ && !any_alive(paused_->rows)) paused_.reset();
  if (!paused_) {
    add_texts(batch, now);
    if (runs_while_paused_ && !pays_to_pause(batch)) batch.pause_after = 0;
  }
  if (paused_ && paused_->yields) add_texts_beside(batch, now);
  if (paused_ && batch.empty()) go_on(batch);
  batch.awaited = is_awaited(batch);
  return !batch.empty();
}

bool EncoderPlanner::is_awaited(const StepBatch& batch) const {
  return pace_.is_limited() || batch.turn != StepTurn::kAnew || batch.pause_after > 0 || is_slow(batch);
}

bool EncoderPlanner::is_slow(const StepBatch& batch) const {
  return seconds_per_token_ * static_cast<double>(batch.token_ids.size()) > kAwaitedSeconds;
}

// Whether a step that runs on while it is paused is to be paused. The device need not wait for the host between quick
// steps, unless short texts wait.
bool EncoderPlanner::pays_to_pause(const StepBatch& batch) const {
  const auto seen = texts_.waiting().entries() | std::views::values | std::views::take(kMostSought);
  return is_slow(batch) || seen.empty() ||
         std::ranges::any_of(seen, [&](Texts::Index index) { return !is_long(texts_.request(index)); });
}

void EncoderPlanner::add_texts(StepBatch& batch, Clock::time_point now) {
  const auto& entries = texts_.waiting().entries();
  int num_passed = 0;
  for (auto entry = entries.begin(); entry != entries.end() && num_passed < kMostSought;) {
    const Texts::Index index = (entry++)->second;  // add_row() takes the entry away
    const Request& request = texts_.request(index);
    if (!has_room(batch, request)) return;
    if (!shares_step(batch, request)) {
      if (!runs_while_paused_ || is_long(request) || !passes(request, batch.rows)) return;
      ++num_passed;  // it is computed beside this step
      continue;
    }
    if (is_long(request)) batch.pause_after = config_.slice_seconds;
    add_row(batch, index, now);
  }
}

bool EncoderPlanner::has_room(const StepBatch& batch, const Request& request) const {
  if (batch.rows.empty()) return true;
  const int most = std::min(config_.max_num_tokens, pace_.max_prefill(0));
  return std::ssize(batch.rows) < config_.max_batch_size && std::ssize(batch.token_ids) + request.num_prompt <= most;
}

bool EncoderPlanner::is_long(const Request& request) const {
  return beside_.max_rows > 0 && request.num_prompt > beside_.max_tokens;
}

// Whether a text may be in a step with the texts of `batch`. A short text shares no step with long ones unless one of
// them is of its flow.
bool EncoderPlanner::shares_step(const StepBatch& batch, const Request& request) const {
  const auto is_of_flow = [&](const StepRow& row) {
    return texts_.request(row.request.index).spec.flow == request.spec.flow;
  };
  const bool has_long = batch.pause_after > 0;
  if (!has_long) return !is_long(request) || std::ranges::all_of(batch.rows, is_of_flow);
  return is_long(request) || std::ranges::any_of(batch.rows, is_of_flow);
}

bool EncoderPlanner::any_alive(std::span<const StepRow> rows) const {
  return std::ranges::any_of(rows, [&](const StepRow& row) { return texts_.alive(row.request); });
}

void EncoderPlanner::add_texts_beside(StepBatch& batch, Clock::time_point now) {
  batch.turn = StepTurn::kBeside;
  std::vector<Texts::Index> found;
  int num_tokens = 0, num_sought = 0;
  const int most_tokens = std::min(beside_.max_tokens, pace_.max_prefill(0));
  const int most_rows = std::min(beside_.max_rows, config_.max_batch_size);
  for (const auto& [_, index] : texts_.waiting().entries()) {
    if (std::ssize(found) == most_rows || num_sought++ == kMostSought) break;
    const Request& request = texts_.request(index);
    if (is_long(request) || !passes(request, paused_->rows)) continue;
    if (!found.empty() && num_tokens + request.num_prompt > most_tokens) break;
    num_tokens += request.num_prompt;
    found.push_back(index);
  }
  for (const Texts::Index index : found) add_row(batch, index, now);
}

// Whether a short text may be computed before a step of these rows is over.
bool EncoderPlanner::passes(const Request& request, std::span<const StepRow> rows) const {
  return std::ranges::all_of(rows, [&](const StepRow& row) {
    if (!texts_.alive(row.request)) return true;
    const RequestSpec& paused = texts_.request(row.request.index).spec;
    return paused.flow != request.spec.flow && paused.priority <= request.spec.priority;
  });
}

void EncoderPlanner::go_on(StepBatch& batch) const {
  batch.turn = StepTurn::kGoOn;
  batch.rows = paused_->rows;
  batch.token_ids = paused_->token_ids;
  batch.pause_after = std::max(config_.slice_seconds, paused_->beside_seconds);
}

void EncoderPlanner::add_row(StepBatch& batch, Texts::Index index, Clock::time_point now) {
  texts_.run(index, now);
  const Request& request = texts_.request(index);
  const auto row = static_cast<std::int32_t>(batch.rows.size());
  batch.rows.push_back({.request = texts_.ref(index),
                        .slot = row,
                        .request_slot = row,
                        .first_token = static_cast<std::int32_t>(batch.token_ids.size()),
                        .num_tokens = request.num_prompt,
                        .past_len = 0,
                        .num_generated = 0,
                        .outputs_from = 0,
                        .num_drafts = 0,
                        .sample = false});
  batch.token_ids.insert(batch.token_ids.end(), request.tokens.begin(), request.tokens.end());
  if (request.spec.rows) batch.token_rows.push_back(request.spec.rows);
  num_scheduled_tokens_ += request.num_prompt;
}

void EncoderPlanner::complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) {
  steps_.ended = batch.step;
  if (batch.turn == StepTurn::kBeside) {
    paused_->yields = false;
    paused_->beside_seconds = result.compute_seconds;
  }
  const bool goes_on = batch.turn == StepTurn::kGoOn;
  const double seconds = result.compute_seconds + (goes_on ? paused_->seconds : 0);
  if (result.paused) {
    paused_ = Paused{.rows = batch.rows, .token_ids = batch.token_ids, .seconds = seconds};
    return;
  }
  if (goes_on) paused_.reset();
  pace_.observe(static_cast<int>(batch.token_ids.size()), seconds);
  if (batch.turn != StepTurn::kBeside) seconds_per_token_ = seconds / static_cast<double>(batch.token_ids.size());
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const RequestRef ref = batch.rows[i].request;
    if (!texts_.alive(ref)) continue;  // it ended while the step was in flight
    RowResult& row = result.rows[i];
    if (!row.error.empty()) {
      texts_.end(ref.index, FinishReason::kError, std::move(row.error), {now, events});
      continue;
    }
    events.tokens.push_back({texts_.request(ref.index).id, {}, std::move(row.outputs), 0});
    texts_.end(ref.index, FinishReason::kEndId, {}, {now, events});
  }
}

void EncoderPlanner::abandon(std::span<const StepBatch* const> batches, const StepError& error, Clock::time_point now,
                             EventBatch& events) {
  if (batches.front()->turn == StepTurn::kBeside) {
    paused_->yields = false;
  } else {
    paused_.reset();
  }
  for (const StepBatch* batch : batches) {
    steps_.ended = batch->step;
    for (const StepRow& row : batch->rows) {
      if (!texts_.alive(row.request)) continue;
      if (batch == batches.front()) {
        texts_.end(row.request.index, FinishReason::kError, error.what(), {now, events});
      } else {
        texts_.requeue(row.request.index);
      }
    }
  }
}

void EncoderPlanner::reset(const std::string& message, Clock::time_point now, EventBatch& events) {
  end_all(FinishReason::kError, message, now, events);
  paused_.reset();
  steps_.ended = ++steps_.launched;  // a step that may have been in preparation is never launched
}

SchedulerStats EncoderPlanner::stats() const {
  SchedulerStats stats;
  stats.num_running = texts_.num_running();
  stats.num_waiting = texts_.waiting().size();
  stats.num_scheduled_tokens = num_scheduled_tokens_;
  return stats;
}

}  // namespace tl
