#include "schedule/decoder/step_writer.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace tl {

StepWriter::StepWriter(ScheduleState& state, StepBatch& batch, TokenCounters& counters)
    : state_(state), blocks_(state.blocks), batch_(batch), counters_(counters) {
  batch_.clear();
  batch_.step = state_.steps.launched + 1;
}

bool StepWriter::reserve(Running& running, int num_tokens) {
  return blocks_.reserve(running, running.kv(), num_tokens, batch_.copies);
}

bool StepWriter::reserve_and_show(Running& running, int num_tokens) {
  if (!reserve(running, num_tokens)) return false;
  push_table_updates(running.slot().index(), running.kv());
  return true;
}

bool StepWriter::add_row(Index index, int num_tokens, const TokenRun& drafts) {
  Running& running = state_.requests.table().running(index);
  Request& request = running.request();
  const int past_len = blocks_.cache().length(running.kv());
  if (keeps_states()) num_tokens = keep_state(running, num_tokens);
  const int known_end = past_len + num_tokens, end = known_end + drafts.size();
  if (!reserve(running, end)) return false;
  const bool gives_back = blocks_.geometry().gives_back();
  const int most_before = gives_back ? request.max_blocks(blocks_.geometry(), past_len) : 0;

  StepRow& row = push_row(index, running.slot().index(), running.kv(), end - past_len, drafts.size());
  row.num_generated = request.num_generated();
  row.sample = known_end == request.num_total();
  blocks_.cache().advance(running.kv(), row.num_tokens, num_unsettled(request, row));
  if (row.decodes()) batch_.num_decode_tokens += row.num_tokens;
  batch_.awaited = batch_.awaited || (row.sample && awaits(request));
  push_tokens(running, past_len, num_tokens, drafts);
  if (request.spec.prompt_outputs) request.outputs_from = std::max(request.outputs_from, known_end);
  counters_.num_recomputed += std::max(std::min(known_end, request.max_scheduled) - past_len, 0);
  request.max_scheduled = std::max(request.max_scheduled, known_end);
  if (!request.is_search() && row.sample) {
    ++request.num_pending;
    request.sampling_step = batch_.step;
  }
  if (!gives_back) return true;
  blocks_.leave_behind(running, running.kv(), batch_.step);
  if (Promise* promise = running.promise()) promise->take(most_before - request.max_blocks(blocks_.geometry(), end));
  return true;
}

void StepWriter::push_tokens(Running& running, int past_len, int num_tokens, const TokenRun& drafts) {
  Request& request = running.request();
  if (request.num_pending > 0) {  // exactly one token remains, and only the device knows it
    batch_.token_ids.push_back(kLastSampled);
    return;
  }
  request.prefill_step = batch_.step;
  const auto first = request.tokens.begin() + past_len;
  batch_.token_ids.insert(batch_.token_ids.end(), first, first + num_tokens);
  batch_.token_ids.insert(batch_.token_ids.end(), drafts.begin(), drafts.end());
  blocks_.cache().commit(running.kv(), chain_of(request), batch_.step);
}

void StepWriter::add_beam_rows(Index index) {
  Running& running = state_.requests.table().running(index);
  BeamGroup& group = *running.beams();
  KvCacheManager& cache = blocks_.cache();
  // Each beam needs at most one block of each cache group. These blocks are promised: they are ready at the latest when
  // the steps in flight have ended.
  const BlockPool& pool = cache.device();
  const auto num_needed = std::ssize(group.beams()) * cache.geometry().num_groups();
  if (pool.num_ready() < num_needed && pool.num_ready() < pool.num_unreferenced()) return;
  for (const Beam& beam : group.beams()) {
    if (!blocks_.reserve(running, beam.kv, cache.length(beam.kv) + 1, batch_.copies)) {
      throw std::logic_error("a block that was promised to a beam search is not there");
    }
  }
  for (const Beam& beam : group.beams()) {
    StepRow& row = push_row(index, beam.slot, beam.kv, 1, 0);
    row.num_generated = running.request().num_searched;
    row.sample = true;
    cache.advance(beam.kv, row.num_tokens);
    batch_.token_ids.push_back(beam.token);
    ++batch_.num_decode_tokens;
    blocks_.leave_behind(running, beam.kv, batch_.step);
  }
  group.launched();
}

// Whether states are kept for requests that begin like an earlier one.
bool StepWriter::keeps_states() const {
  return blocks_.geometry().has_states() && blocks_.cache().config().enable_block_reuse &&
         state_.config.enable_chunked_context;
}

// Keeps the state that a prompt has now, if others may go on from it and blocks are free. Returns the number of tokens
// of the next step: `num_tokens`, or those up to the next such state.
int StepWriter::keep_state(const Running& running, int num_tokens) {
  KvCacheManager& cache = blocks_.cache();
  const Request& request = running.request();
  const int past_len = cache.length(running.kv());
  const bool is_free = blocks_.num_free(true) >= cache.geometry().run();
  if (past_len > 0 && next_kept(request, past_len) == past_len && is_free && cache.can_keep_state(running.kv())) {
    cache.keep_state(running.kv(), batch_.copies);
  }
  const int next = next_kept(request, past_len + 1);
  return next > past_len ? std::min(num_tokens, next - past_len) : num_tokens;
}

// The first position from `position` on at which the state of a prompt is kept: where it parts from earlier prompts,
// where its last full block ends, and at multiples of an interval. 0 if there is none.
int StepWriter::next_kept(const Request& request, int position) const {
  const int page = blocks_.cache().config().tokens_per_block, last = (request.num_prompt - 1) / page * page;
  if (position > last) return 0;
  const int interval = state_.config.state_interval * page;
  int next = last;
  if (position <= request.parted_at) next = std::min(next, request.parted_at);
  if (interval > 0) next = std::min(next, (position + interval - 1) / interval * interval);
  return next;
}

// Whether the request can only go on when the results of its row in this step are known.
bool StepWriter::awaits(const Request& request) const {
  if (request.spec.guided && state_.executor.says_late_with_results()) return true;
  return request.drafts_in(batch_.step + static_cast<std::uint64_t>(state_.steps.num_stages));
}

// Adds a row for the next `num_tokens` reserved positions of `kv`, the last `num_drafts` of them drafts. The caller
// fills in the tokens and advances the sequence.
StepRow& StepWriter::push_row(Index index, int slot, const KvSequence& kv, int num_tokens, int num_drafts) {
  const Running& running = state_.requests.table().running(index);
  push_table_updates(slot, kv);
  batch_.rows.push_back({.request = state_.requests.table().ref(index),
                         .slot = slot,
                         .request_slot = running.slot().index(),
                         .first_token = static_cast<std::int32_t>(batch_.token_ids.size()),
                         .num_tokens = num_tokens,
                         .past_len = blocks_.cache().length(kv),
                         .num_generated = 0,
                         .outputs_from = running.request().outputs_from,
                         .num_drafts = num_drafts,
                         .sample = false});
  counters_.num_scheduled += num_tokens;
  return batch_.rows.back();
}

// Tells the device what has changed in the sequence's block tables.
void StepWriter::push_table_updates(int slot, const KvSequence& kv) {
  KvCacheManager& cache = blocks_.cache();
  if (!cache.take_changed(kv)) return;
  for (int group = 0; group < cache.geometry().num_groups(); ++group) {
    const auto blocks = cache.blocks(kv, group);
    for (int i = cache.take_first_change(kv, group); i < std::ssize(blocks); ++i) {
      batch_.table_updates.push_back({slot, group, i, blocks[static_cast<std::size_t>(i)]});
    }
  }
}

}  // namespace tl
