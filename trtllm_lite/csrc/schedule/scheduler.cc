#include "schedule/scheduler.h"

#include <algorithm>

namespace tl {

Scheduler::Scheduler(const SchedulerConfig& config, const KvManagerConfig& cache, StepExecutor& executor)
    : config_(checked(config, cache, executor.num_slots())),
      executor_(executor),
      cache_(with_steps_of(cache, config.max_num_tokens)),
      slots_(executor.num_slots()),
      ranks_(config.ageing_window),
      pace_(config.enable_chunked_context ? config.step_seconds : 0, config.least_prefill),
      num_stages_(executor.num_stages()) {
  running_.reserve(config.max_batch_size);
}

void Scheduler::add(std::unique_ptr<Request> request) {
  request->hashes.reserve(cache_.geometry().num_blocks_for(request->max_kv_len()));
  request->rank = ranks_.next(request->spec.priority);
  if (config_.drafter && !request->is_search()) request->draft_state = config_.drafter->start(*request);
  if (const DraftState* drafts = request->draft_state.get()) {
    request->max_draft_len = config_.max_draft_len;
    if (drafts->proposes) request->rest = 0;
    if (drafts->forces) request->forced_rest = 0;
    ++num_drafters_;
  }
  const Index index = table_.add(Waiting(std::move(request)));
  const Request& added = table_.request(index);
  waiting_.insert(added.rank, index);
  if (added.deadline) deadlines_.add(*added.deadline, index);
}

bool Scheduler::end(RequestId id, FinishReason reason, std::string message, Clock::time_point now, EventBatch& events) {
  const std::optional<Index> index = table_.find(id);
  if (index) remove(*index, reason, std::move(message), now, events);
  return index.has_value();
}

void Scheduler::expire(Clock::time_point now, EventBatch& events) {
  while (const std::optional<Index> index = deadlines_.passed(now)) {
    remove(*index, FinishReason::kTimedOut, {}, now, events);
  }
}

void Scheduler::end_all(FinishReason reason, const std::string& message, Clock::time_point now, EventBatch& events) {
  table_.for_each([&](Index index) { remove(index, reason, message, now, events); });
}

bool Scheduler::prepare(StepBatch& batch, Clock::time_point now, EventBatch& events) {
  batch.clear();
  batch.step = launched_ + 1;
  lend_slabs();
  const bool room = make_room(batch);
  const bool prefill_only = head_needs_a_step_of_its_own();
  bool has_prefill = true;
  wake_drafters(batch.step);
  Shares left = shares(batch.step);
  if (!prefill_only) has_prefill = add_decode_rows(left, batch);
  if (!prefill_only) add_draft_rows(left, batch);
  if (room) pass_short_prompts(left, batch, now, events);
  if (has_prefill) add_prefill_rows(left, batch);
  // A request that was just preempted still has a token in flight. No request may pass it, so admission pauses.
  if (room) admit(left.num_prefilling, batch, now, events);
  if (prefill_only && batch.rows.empty()) {
    add_decode_rows(left, batch);
    add_draft_rows(left, batch);
  }
  if (batch.rows.empty() && launched_ == ended_ && wake_late()) {
    add_decode_rows(left, batch);
    add_draft_rows(left, batch);
  }
  // A step that prompts fill up to its time limit is awaited, so that a request that arrives meanwhile is in the next
  // one.
  batch.awaited = batch.awaited || (pace_.is_limited() && prefill_budget(batch) == 0);
  last_step_decoded_ = batch.num_decode_tokens > 0;
  return !batch.empty();
}

// Positions that the row may give back: those of its drafts and, if it may be late, that of the token before them.
int Scheduler::num_unsettled(const Request& request, const StepRow& row) {
  return row.num_drafts + (request.spec.guided && row.sample ? 1 : 0);
}

// Whether the request can only go on when the results of its row in the step are known.
bool Scheduler::awaits(const Request& request, std::uint64_t step) const {
  if (request.spec.guided && executor_.says_late_with_results()) return true;
  return request.drafts_in(step + static_cast<std::uint64_t>(num_stages_));
}

void Scheduler::launched(const StepBatch& batch) {
  step_launched(batch.step);
  if (config_.drafter) config_.drafter->launched(batch);
}

void Scheduler::step_launched(std::uint64_t step) {
  launched_ = step;
  cache_.step_launched(step);
  slots_.step_launched(step);
}

void Scheduler::step_ended(std::uint64_t step) {
  ended_ = step;
  cache_.step_ended(step);
  slots_.step_ended(step);
}

// The number of known or pending tokens not yet in any step. The last of them yields the next token.
int Scheduler::remaining(const Running& running) const {
  return running.request().num_total() - cache_.length(running.kv());
}

int Scheduler::budget(const StepBatch& batch) const {
  return config_.max_num_tokens - static_cast<int>(batch.token_ids.size());
}

// The number of free blocks without those promised. If there are no promises, blocks shared in windowed groups count
// once: a request that runs out of blocks later is preempted.
int Scheduler::num_free(bool beside_promises) const {
  if (!beside_promises && promises_.empty()) return cache_.num_unreferenced();
  return cache_.config().num_blocks - cache_.num_claimed() - promises_.num_blocks();
}

bool Scheduler::add_decode_rows(const Shares& shares, StepBatch& batch) {
  bool has_prefill = false;
  const auto has_share = [&] { return static_cast<int>(batch.rows.size()) < shares.num_decoding; };
  for (const Index index : running_) {
    const Running& running = table_.running(index);
    // A request that gets no block waits for the next step: blocks that steps in flight still use are ready by then.
    if (running.beams() != nullptr && running.beams()->ready()) {
      if (has_share()) add_beam_rows(index, batch);
      continue;
    }
    const int num_tokens = remaining(running);
    has_prefill = has_prefill || num_tokens > 1;
    const Request& request = running.request();
    if (num_tokens != 1 || request.all_scheduled() || request.drafts() || request.late.rests) {
      continue;
    }
    if (has_share() && !is_under_way(request, batch.step)) add_row(index, 1, {}, batch);
  }
  return has_prefill;
}

// Adds a row for the request's next `num_tokens` tokens, followed by `drafts`.
bool Scheduler::add_row(Index index, int num_tokens, const TokenRun& drafts, StepBatch& batch) {
  Running& running = table_.running(index);
  Request& request = running.request();
  const int past_len = cache_.length(running.kv());
  if (keeps_states()) num_tokens = keep_state(running, num_tokens, batch);
  const int known_end = past_len + num_tokens, end = known_end + drafts.size();
  if (!reserve(running, running.kv(), end, batch)) return false;
  const bool gives_back = cache_.geometry().gives_back();
  const int most_before = gives_back ? request.max_blocks(cache_.geometry(), past_len) : 0;

  StepRow& row = push_row(index, running.slot().index(), running.kv(), end - past_len, drafts.size(), batch);
  row.num_generated = request.num_generated();
  row.sample = known_end == request.num_total();
  cache_.advance(running.kv(), row.num_tokens, num_unsettled(request, row));
  if (row.decodes()) batch.num_decode_tokens += row.num_tokens;
  batch.awaited = batch.awaited || (row.sample && awaits(request, batch.step));
  if (request.num_pending > 0) {  // exactly one token remains, and only the device knows it
    batch.token_ids.push_back(kLastSampled);
  } else {
    request.prefill_step = batch.step;
    const auto first = request.tokens.begin() + past_len;
    batch.token_ids.insert(batch.token_ids.end(), first, first + num_tokens);
    batch.token_ids.insert(batch.token_ids.end(), drafts.begin(), drafts.end());
    cache_.commit(running.kv(), chain(request), batch.step);
  }
  if (request.spec.prompt_outputs) request.outputs_from = std::max(request.outputs_from, known_end);
  counters_.num_recomputed_tokens += std::max(std::min(known_end, request.max_scheduled) - past_len, 0);
  request.max_scheduled = std::max(request.max_scheduled, known_end);
  if (!request.is_search() && row.sample) {
    ++request.num_pending;
    request.sampling_step = batch.step;
  }
  if (!gives_back) return true;
  leave_behind(running, running.kv(), batch.step);
  if (Promise* promise = running.promise()) promise->take(most_before - request.max_blocks(cache_.geometry(), end));
  return true;
}

// Whether states are kept for requests that begin like an earlier one.
bool Scheduler::keeps_states() const {
  return cache_.geometry().has_states() && cache_.config().enable_block_reuse && config_.enable_chunked_context;
}

// Keeps the state after the last full block of a prompt, if blocks are free. Returns the number of tokens of the next
// step: `num_tokens`, or those up to there.
int Scheduler::keep_state(const Running& running, int num_tokens, StepBatch& batch) {
  const int page = cache_.config().tokens_per_block, kept_len = (running.request().num_prompt - 1) / page * page;
  const int past_len = cache_.length(running.kv());
  if (past_len < kept_len) return std::min(num_tokens, kept_len - past_len);
  const bool is_free = num_free(true) >= cache_.geometry().run();
  if (past_len == kept_len && is_free && cache_.can_keep_state(running.kv())) {
    cache_.keep_state(running.kv(), batch.copies);
  }
  return num_tokens;
}

// Adds a row for the next `num_tokens` reserved positions of `kv`, the last `num_drafts` of them drafts. The caller
// fills in the tokens and calls advance().
StepRow& Scheduler::push_row(Index index, int slot, const KvSequence& kv, int num_tokens, int num_drafts,
                             StepBatch& batch) {
  const Running& running = table_.running(index);
  if (cache_.take_changed(kv)) add_table_updates(slot, kv, batch);
  batch.rows.push_back({.request = table_.ref(index),
                        .slot = slot,
                        .request_slot = running.slot().index(),
                        .first_token = static_cast<std::int32_t>(batch.token_ids.size()),
                        .num_tokens = num_tokens,
                        .past_len = cache_.length(kv),
                        .num_generated = 0,
                        .outputs_from = running.request().outputs_from,
                        .num_drafts = num_drafts,
                        .sample = false});
  counters_.num_scheduled_tokens += num_tokens;
  return batch.rows.back();
}

void Scheduler::add_table_updates(int slot, const KvSequence& kv, StepBatch& batch) {
  for (int group = 0; group < cache_.geometry().num_groups(); ++group) {
    const auto blocks = cache_.blocks(kv, group);
    for (int i = cache_.take_first_change(kv, group); i < std::ssize(blocks); ++i) {
      batch.table_updates.push_back({slot, group, i, blocks[static_cast<std::size_t>(i)]});
    }
  }
}

// Reserves blocks by KvCacheManager::reserve, but takes only those promised to `running` or to no request.
bool Scheduler::reserve(Running& running, const KvSequence& kv, int num_tokens, StepBatch& batch) {
  if (cache_.is_writable(kv, num_tokens)) return true;
  Promise* promise = running.promise();
  if (promise == nullptr) {
    const int num_missing = cache_.num_missing(kv, num_tokens);
    if (num_missing > 0 && num_missing > num_free(false)) return false;
  }
  const int num_claimed = cache_.num_claimed();
  if (!cache_.reserve(kv, num_tokens, batch.copies)) return false;
  if (promise != nullptr) promise->take(cache_.num_claimed() - num_claimed);
  return true;
}

// Releases blocks by KvCacheManager::leave_behind; released blocks are promised to the request again.
void Scheduler::leave_behind(Running& running, const KvSequence& kv, std::uint64_t last_step) {
  if (!cache_.geometry().gives_back()) return;
  const int num_claimed = cache_.num_claimed();
  cache_.leave_behind(kv, last_step);
  if (Promise* promise = running.promise()) promise->take(cache_.num_claimed() - num_claimed);
}

void Scheduler::remove(Index index, FinishReason reason, std::string message, Clock::time_point now,
                       EventBatch& events) {
  const Rank rank = table_.request(index).rank;
  // The error may be in content that the request left in the cache, also if it was preempted meanwhile.
  Request& failed = table_.request(index);
  if (reason == FinishReason::kError && failed.max_scheduled > 0) cache_.forget(chain(failed));
  if (std::holds_alternative<Running>(table_.state(index))) {
    leave(index);
  } else {
    waiting_.erase(rank, index);
  }
  const std::unique_ptr<Request> request = table_.remove(index);
  if (request->deadline) deadlines_.remove(*request->deadline, index);
  if (request->draft_state) --num_drafters_;
  if (request->draft_state && reason != FinishReason::kError) {
    const auto generated = std::span(request->tokens).subspan(static_cast<std::size_t>(request->num_prompt));
    config_.drafter->end(*request->draft_state, generated);
  }
  events.ends.push_back({request->id, reason, std::move(message), request->timings(now)});
}

void Scheduler::leave(Index index) {
  std::erase(running_, index);
  num_rows_ -= table_.request(index).max_rows();
}

}  // namespace tl
