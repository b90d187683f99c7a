// Writes a step: its rows and their tokens, changes of block tables, and copies of blocks.
#pragma once

#include <cstdint>

#include "executor/step.h"
#include "schedule/decoder/schedule_state.h"

namespace tl {

// Tokens in the steps of a scheduler so far.
struct TokenCounters {
  std::int64_t num_scheduled = 0;   // includes drafts
  std::int64_t num_recomputed = 0;  // scheduled again after a preemption
};

// Positions that the row may give back: those of its drafts and, if it may be late, that of the token before them.
inline int num_unsettled(const Request& request, const StepRow& row) {
  return row.num_drafts + (request.spec.guided && row.sample ? 1 : 0);
}

// The writer of one step. Rows come in the order of the calls that add them.
class StepWriter {
 public:
  using Index = RequestTable::Index;

  // Borrows the arguments. Begins the step after the last launched one.
  StepWriter(ScheduleState& state, StepBatch& batch, TokenCounters& counters);

  StepBatch& batch() { return batch_; }
  const StepBatch& batch() const { return batch_; }
  std::uint64_t number() const { return batch_.step; }
  int num_rows() const { return static_cast<int>(batch_.rows.size()); }
  // The number of tokens for which max_num_tokens has room.
  int budget() const { return state_.config.max_num_tokens - static_cast<int>(batch_.token_ids.size()); }

  // Makes the request's next positions up to `num_tokens` writable. Returns false if blocks are missing.
  bool reserve(Running& running, int num_tokens);
  // Does the same for rows whose block table somebody reads before they are added.
  bool reserve_and_show(Running& running, int num_tokens);
  // Adds a row for the request's next `num_tokens` tokens, followed by `drafts`. Returns false if blocks are missing.
  bool add_row(Index index, int num_tokens, const TokenRun& drafts = {});
  // Adds the newest token of every beam of a search, or no row at all: the search needs the logits of all beams at
  // once.
  void add_beam_rows(Index index);

 private:
  bool keeps_states() const;
  int keep_state(const Running& running, int num_tokens);
  int next_kept(const Request& request, int position) const;
  bool awaits(const Request& request) const;
  StepRow& push_row(Index index, int slot, const KvSequence& kv, int num_tokens, int num_drafts);
  void push_tokens(Running& running, int past_len, int num_tokens, const TokenRun& drafts);
  void push_table_updates(int slot, const KvSequence& kv);

  ScheduleState& state_;
  KvBlocks& blocks_;
  StepBatch& batch_;
  TokenCounters& counters_;
};

}  // namespace tl
