#include "schedule/encoder/encoder_planner.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace tl {
namespace {

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
      steps_{.num_stages = executor.num_stages()} {}

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
  batch.awaited = pace_.is_limited();
  while (!texts_.waiting().empty()) {
    const Texts::Index head = texts_.waiting().head();
    if (!has_room(batch, texts_.request(head))) break;
    add_row(batch, head, now);
  }
  return !batch.empty();
}

bool EncoderPlanner::has_room(const StepBatch& batch, const Request& request) const {
  if (batch.rows.empty()) return true;
  const int most = std::min(config_.max_num_tokens, pace_.max_prefill(0));
  return std::ssize(batch.rows) < config_.max_batch_size && std::ssize(batch.token_ids) + request.num_prompt <= most;
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
  num_scheduled_tokens_ += request.num_prompt;
}

void EncoderPlanner::complete(const StepBatch& batch, StepResult& result, Clock::time_point now, EventBatch& events) {
  steps_.ended = batch.step;
  pace_.observe(static_cast<int>(batch.token_ids.size()), result.compute_seconds);
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
