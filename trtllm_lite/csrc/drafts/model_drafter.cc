#include "drafts/model_drafter.h"

#include <algorithm>
#include <utility>

namespace tl {
namespace {

struct ModelDraftState : DraftState {
  explicit ModelDraftState(std::shared_ptr<const SlotParams> own) : params(std::move(own)) {}
  std::shared_ptr<const SlotParams> params;
};

// The number of known tokens; all their positions but the last have been computed.
int num_known(const DraftTask& task) { return static_cast<int>(task.request.tokens.size()); }

}  // namespace

ModelDrafter::ModelDrafter(ModelDrafterConfig config, std::unique_ptr<StepExecutor> executor)
    : config_(std::move(config)),
      executor_(std::move(executor)),
      tables_(config_.num_slots, config_.num_groups),
      filled_(static_cast<std::size_t>(config_.num_blocks)),
      on_host_(static_cast<std::size_t>(config_.num_host_blocks)) {}

// A beam search gets no drafts, because its tokens are only known at its end.
std::unique_ptr<DraftState> ModelDrafter::start(const Request& request) {
  if (request.is_search()) return nullptr;
  return std::make_unique<ModelDraftState>(config_.params(request.spec.params));
}

void ModelDrafter::look_at(const StepBatch& batch, std::span<DraftTask> tasks) {
  mirror(batch);
  for (DraftTask& task : tasks) {
    const int num_behind = num_known(task) - 1 - num_computed(task);
    task.num_behind = num_behind < most_at_once(config_.max_kept) ? 0 : num_behind;
    if (is_copied(task, batch)) task.most = 0;
  }
}

DraftTimes ModelDrafter::draft(std::span<DraftTask> tasks) {
  proposals_.clear();
  drafted_slots_.clear();
  for (DraftTask& task : tasks) {
    if (task.most == 0) continue;
    proposals_.push_back({.task = &task, .num_computed = num_computed(task)});
    drafted_slots_.push_back(task.slot);
  }
  if (proposals_.empty()) return {};
  const double start = config_.seconds();
  try {
    open_slots();
    const int num_caught_up = catch_up();
    const double caught_up = config_.seconds();
    propose();
    return {config_.seconds() - caught_up, caught_up - start, num_caught_up};
  } catch (...) {
    give_up();
    throw;
  }
}

// Marks what the rows write as not yet computed by the draft model, except for what it has computed itself: the newest
// token and all of its own drafts but the last. If it reads features, only the newest token counts, because features of
// drafts were not the target model's.
void ModelDrafter::launched(const StepBatch& batch) {
  mirror(batch);
  if (!copies_.empty()) {
    launch(next_batch());
    take_oldest();
  }
  for (const StepRow& row : batch.rows) {
    const bool is_drafted = std::ranges::find(drafted_slots_, row.slot) != drafted_slots_.end();
    const int num_drafted = is_drafted ? row.num_drafts : 0;
    const int num_valid = config_.max_kept > 0 ? std::min(num_drafted, 1) : num_drafted;
    mark_overwritten(row.slot, row.past_len + num_valid, row.past_len + row.num_tokens);
  }
  drafted_slots_.clear();
}

// The number of leading positions that the draft model has computed. Positions after the known tokens were drafts that
// were rejected.
int ModelDrafter::num_computed(const DraftTask& task) const {
  const int most = num_known(task) - 1;
  int num = 0;
  for (const std::int32_t block : tables_.blocks(task.slot, 0)) {
    num += filled_[static_cast<std::size_t>(block)];
    if (num >= most || num % config_.tokens_per_block != 0 || filled_[static_cast<std::size_t>(block)] == 0) break;
  }
  return std::min(num, most);
}

// Whether another row of the batch in preparation computes a shared block that the sequence lacks. The rows of a step
// run concurrently, so this row waits for the next call.
bool ModelDrafter::is_computing(const Proposal& proposal) const {
  return num_computed(*proposal.task) > proposal.num_computed;
}

// Whether features of the sequence arrive by copies at the beginning of the step in preparation.
bool ModelDrafter::is_copied(const DraftTask& task, const StepBatch& batch) const {
  if (config_.max_kept == 0) return false;
  const std::span<const std::int32_t> blocks = tables_.blocks(task.slot, 0);
  return std::ranges::any_of(batch.copies, [&](const CopyOrder& copy) {
    return copy.kind != CopyKind::kDeviceToHost && std::ranges::find(blocks, copy.dst) != blocks.end();
  });
}

void ModelDrafter::mark_computed(int slot, int from, int end) {
  for_each_block(slot, from, end, [](std::int32_t& filled, int, int last) { filled = last; });
}

void ModelDrafter::mark_overwritten(int slot, int from, int end) {
  for_each_block(slot, from, end, [](std::int32_t& filled, int first, int) { filled = std::min(filled, first); });
}

// Calls `use(filled, first, last)` for each block that contains positions `from` to `end`; `first` and `last` are the
// range within the block.
template <typename Use>
void ModelDrafter::for_each_block(int slot, int from, int end, Use&& use) {
  const std::span<const std::int32_t> blocks = tables_.blocks(slot, 0);
  for (int size = config_.tokens_per_block; from < end; from = (from / size + 1) * size) {
    const int index = from / size;
    std::int32_t& filled = filled_[static_cast<std::size_t>(blocks[static_cast<std::size_t>(index)])];
    use(filled, from % size, std::min(end - index * size, size));
  }
}

// Takes over the copies and table updates that were added to a step since the last call. A block without content of the
// draft model is not copied.
void ModelDrafter::mirror(const StepBatch& batch) {
  if (std::exchange(mirrored_step_, batch.step) != batch.step) num_copies_ = num_updates_ = 0;
  for (const CopyOrder& copy : std::span(batch.copies).subspan(num_copies_)) {
    const std::int32_t num_filled = filled(copy.kind, true, copy.src);
    filled(copy.kind, false, copy.dst) = num_filled;
    if (num_filled > 0) copies_.push_back(copy);
  }
  const std::span<const TableUpdate> updates = std::span(batch.table_updates).subspan(num_updates_);
  tables_.update(updates);
  forget_blocks_of_states(updates);
  num_copies_ = batch.copies.size();
  num_updates_ = batch.table_updates.size();
}

// Blocks in which states lie from now on hold nothing of the draft model, so that it copies none of them.
void ModelDrafter::forget_blocks_of_states(std::span<const TableUpdate> updates) {
  for (const TableUpdate& update : updates) {
    if (update.group > 0) std::fill_n(filled_.begin() + update.block, config_.blocks_of_state, 0);
  }
}

std::int32_t& ModelDrafter::filled(CopyKind kind, bool is_source, std::int32_t block) {
  const bool on_host = kind == (is_source ? CopyKind::kHostToDevice : CopyKind::kDeviceToHost);
  return (on_host ? on_host_ : filled_)[static_cast<std::size_t>(block)];
}

// The sampler's state contains the drafts of earlier calls, accepted or not, so every call starts again from the known
// tokens.
void ModelDrafter::open_slots() {
  for (std::size_t i = 0; i < proposals_.size(); ++i) {
    const Request& request = proposals_[i].task->request;
    const auto& state = static_cast<const ModelDraftState&>(*proposals_[i].task->state);
    executor_->set_slot(static_cast<int>(i), state.params, request.tokens, request.num_prompt);
  }
}

// Runs the draft model over known tokens that it has not computed, and returns their number. No row has only one token:
// a GPU computes logits for such a row, and a draft head that computes logits overwrites the target model's features of
// the token with its own.
int ModelDrafter::catch_up() {
  StepBatch& batch = next_batch();
  for (std::size_t i = 0; i < proposals_.size(); ++i) {
    Proposal& proposal = proposals_[i];
    const int end = num_known(*proposal.task) - 1, num_behind = end - proposal.num_computed;
    const int room = config_.max_num_tokens - static_cast<int>(batch.token_ids.size());
    if (num_behind < most_at_once(config_.max_kept) || room < 2 || is_computing(proposal)) continue;
    const int from = std::exchange(proposal.num_computed, proposal.num_computed + std::min(num_behind, room));
    add_row(i, from, proposal.num_computed, batch);
    mark_computed(proposal.task->slot, from, proposal.num_computed);
  }
  if (batch.rows.empty()) return 0;
  launch(batch);
  take_oldest();
  return static_cast<int>(batch.token_ids.size());
}

// Runs a step for each place of a draft. Tokens stay on the device, so each step is launched before the tokens of the
// previous step are read.
void ModelDrafter::propose() {
  for (Proposal& proposal : proposals_) {
    proposal.is_over =
        num_known(*proposal.task) - proposal.num_computed > most_at_once(config_.max_kept) || is_computing(proposal);
    if (proposal.is_over) continue;
    const int end = num_known(*proposal.task) - 1 + proposal.task->most;
    mark_computed(proposal.task->slot, proposal.num_computed, end);
  }
  for (int place = 0;; ++place) {
    StepBatch& batch = next_batch();
    add_proposals(place, batch);
    if (batch.rows.empty()) break;
    launch(batch);
    if (in_flight_ == 2) take_oldest();
  }
  while (in_flight_ > 0) take_oldest();
}

void ModelDrafter::add_proposals(int place, StepBatch& batch) {
  for (std::size_t i = 0; i < proposals_.size(); ++i) {
    const Proposal& proposal = proposals_[i];
    const DraftTask* task = proposal.task;
    if (proposal.is_over || place >= task->most) continue;
    const int newest = num_known(*task) - 1;
    add_row(i, place == 0 ? proposal.num_computed : newest + place, newest + place + 1, batch);
    StepRow& row = batch.rows.back();
    row.sample = true;
    row.num_generated = newest + 1 + place - task->request.num_prompt;
  }
}

// Adds a row for positions `from` to `end` of proposal `index`: known tokens, or the token that it sampled last.
void ModelDrafter::add_row(std::size_t index, int from, int end, StepBatch& batch) {
  const DraftTask& task = *proposals_[index].task;
  const auto slot = static_cast<std::int32_t>(index);
  if (!std::exchange(proposals_[index].has_table, true)) {
    const std::span<const std::int32_t> blocks = tables_.blocks(task.slot, 0);
    const int num_blocks = (num_known(task) - 1 + task.most + config_.tokens_per_block - 1) / config_.tokens_per_block;
    for (int i = 0; i < num_blocks; ++i) {
      batch.table_updates.push_back({slot, 0, i, blocks[static_cast<std::size_t>(i)]});
    }
  }
  const int num_tokens = end - from;
  batch.rows.push_back({.request = {},
                        .slot = slot,
                        .request_slot = slot,
                        .first_token = static_cast<std::int32_t>(batch.token_ids.size()),
                        .num_tokens = num_tokens,
                        .past_len = from,
                        .num_generated = 0,
                        .outputs_from = end,
                        .num_drafts = 0,
                        .sample = false});
  const std::vector<std::int32_t>& tokens = task.request.tokens;
  if (end > num_known(task)) {
    batch.token_ids.push_back(kLastSampled);
  } else {
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin() + from, tokens.begin() + end);
  }
  if (num_tokens == 1) ++batch.num_decode_tokens;
}

// The batch that is not in flight, with the copies that come before its rows.
StepBatch& ModelDrafter::next_batch() {
  StepBatch& batch = batches_[num_launched_ % 2];
  batch.clear();
  batch.step = num_launched_ + 1;
  batch.copies = copies_;
  return batch;
}

void ModelDrafter::launch(const StepBatch& batch) {
  ++num_launched_;
  copies_.clear();
  executor_->launch(batch);
  ++in_flight_;
}

void ModelDrafter::take_oldest() {
  const StepBatch& batch = batches_[(num_launched_ - static_cast<std::uint64_t>(in_flight_)) % 2];
  --in_flight_;
  executor_->wait(result_);
  take_drafts(batch);
}

void ModelDrafter::take_drafts(const StepBatch& batch) {
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    Proposal& proposal = proposals_[static_cast<std::size_t>(batch.rows[i].slot)];
    const RowResult& row = result_.rows[i];
    if (!batch.rows[i].sample || proposal.is_over) continue;
    proposal.is_over = !row.error.empty() || row.tokens.empty();
    if (!proposal.is_over) proposal.task->drafts.push_back(row.tokens.back());
  }
}

// Waits for the steps in flight and ignores their errors.
void ModelDrafter::give_up() {
  for (; in_flight_ > 0; --in_flight_) {
    try {
      executor_->wait(result_);
    } catch (...) {  // only the first error is reported
    }
  }
}

}  // namespace tl
