// The interface of scheduler and device: the batch of each step, and its results.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batching/beam_move.h"

namespace tl {

// Opaque to scheduling: the sampling parameters an executor's factory made of a request's options, and whatever it
// returns beside tokens (log probabilities, logits). Only the executor and its bindings know the concrete types.
struct SlotParams {
  virtual ~SlotParams() = default;
};
struct RowOutputs {
  virtual ~RowOutputs() = default;
};

// In StepBatch::token_ids it stands for the token that this slot sampled last, which the host does not know yet.
constexpr std::int32_t kLastSampled = -1;

// Tokens that a row may bring as drafts (StepRow).
constexpr int kMaxDrafts = 8;

// The tokens that one row comes to: those of its drafts that are kept, and one more. Few bytes, as it is mostly one.
class TokenRun {
 public:
  TokenRun() = default;
  TokenRun(TokenRun&& other) noexcept
      : size_(std::exchange(other.size_, 0)), first_(other.first_), all_(std::move(other.all_)) {}
  TokenRun& operator=(TokenRun&& other) noexcept {
    size_ = std::exchange(other.size_, 0);
    first_ = other.first_;
    all_ = std::move(other.all_);
    return *this;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const std::int32_t* begin() const { return size_ > 1 ? all_->data() : &first_; }
  const std::int32_t* end() const { return begin() + size_; }
  std::int32_t back() const { return end()[-1]; }
  void clear() { size_ = 0; }
  void push_back(std::int32_t token) {
    if (size_ == 0) {
      first_ = token;
    } else {
      if (!all_) all_ = std::make_unique<std::array<std::int32_t, kMaxDrafts + 1>>();
      all_->front() = first_;
      all_->at(static_cast<std::size_t>(size_)) = token;
    }
    ++size_;
  }
  // Leaves the first `count` of them.
  void cut(int count) { size_ = count; }

 private:
  std::int32_t size_ = 0;
  std::int32_t first_ = 0;
  std::unique_ptr<std::array<std::int32_t, kMaxDrafts + 1>> all_;  // once there were several
};

enum class CopyKind : std::uint8_t { kDeviceToDevice, kDeviceToHost, kHostToDevice };

// Copies one whole KV block (every layer, keys and values).
struct CopyOrder {
  CopyKind kind;
  std::int32_t src;
  std::int32_t dst;
};

// Entry `index` of the slot's block table in a cache group is `block` from this step on. Entries that no window reaches
// any more are not mentioned again: whatever they say, nobody reads what it names.
struct TableUpdate {
  std::int32_t slot;
  std::int32_t group;
  std::int32_t index;
  std::int32_t block;
};

// The scheduler's own name for the request behind a row; executors ignore it.
struct RequestRef {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend bool operator==(RequestRef, RequestRef) = default;
};

// The last `num_drafts` tokens of a row are guesses how its sequence goes on. The device samples behind the known
// tokens and behind each draft: a draft is kept if it is the token that was sampled in its place, and all before it are
// kept.
//
// A beam search has a row of its prompt first, then one for each beam. The rows of its beams follow each other, best
// beam first, and share `request_slot`.
struct StepRow {
  RequestRef request;
  std::int32_t slot;           // whose block table the row uses
  std::int32_t request_slot;   // that set_slot() was called for: `slot`, but for beams
  std::int32_t first_token;    // into StepBatch::token_ids
  std::int32_t num_tokens;     // >= 1
  std::int32_t past_len;       // tokens of this sequence already in the cache
  std::int32_t num_generated;  // how many tokens the request has sampled before this row: the sampler's counter
  std::int32_t outputs_from;   // prompt outputs of positions before this one have been delivered: do not repeat them
  std::int32_t num_drafts;     // of its tokens, the last
  bool sample;                 // the known tokens of the row end with the last known one: sample the next

  // A row decodes if it has one token beside drafts. (The last token of a prompt costs as much as a generated one.)
  bool decodes() const { return num_tokens == 1 + num_drafts; }
};

// One step. The executor carries it out in this order: copies, table_updates, rows. Steps execute one after the other,
// in launch order; the batch stays unchanged until wait() has returned its results.
struct StepBatch {
  std::uint64_t step = 0;  // greater than the one before
  std::vector<CopyOrder> copies;
  std::vector<TableUpdate> table_updates;
  std::vector<StepRow> rows;  // may be empty when there are copies
  std::vector<std::int32_t> token_ids;
  int num_decode_tokens = 0;  // of rows that decode; the others are prefill
  bool awaited = false;       // a request of its rows goes on only when the results are known
  double guess_seconds = 0;   // that its drafts took, before it was launched

  std::span<const std::int32_t> drafts_of(const StepRow& row) const {
    const auto num_drafts = static_cast<std::size_t>(row.num_drafts);
    return std::span(token_ids).subspan(static_cast<std::size_t>(row.first_token + row.num_tokens) - num_drafts,
                                        num_drafts);
  }
  bool empty() const { return rows.empty() && copies.empty(); }
  bool only_decodes() const { return copies.empty() && num_decode_tokens == std::ssize(token_ids); }
  void clear() {
    copies.clear();
    table_updates.clear();
    rows.clear();
    token_ids.clear();
    num_decode_tokens = 0;
    awaited = false;
    guess_seconds = 0;
  }
};

// The result of a row. Of the rows of a beam search only the first row's result is used.
struct RowResult {
  TokenRun tokens;              // of a sampled row, unless its request is a beam search or the row was late
  std::vector<BeamMove> moves;  // of a beam search's sampled rows: the beams of its next step; none = it is over
  std::unique_ptr<RowOutputs> outputs;  // null unless the request asked for some
  std::string error;                    // not empty: this request fails (say, logits that are not finite), no other
  bool is_late = false;                 // see StepExecutor::late_rows
};

struct StepResult {
  std::vector<RowResult> rows;  // one per row of the batch, in its order
  double compute_seconds = 0;   // measured on the device; 0 if unknown
  double copy_seconds = 0;
  std::vector<int> woken_slots;  // of rows that were late, in this step or before: the masks are there now
};

// The failure of a whole step. Requests in `slots` caused it; if none is named, every running request is lost.
class StepError : public std::runtime_error {
 public:
  explicit StepError(const std::string& message, std::vector<int> slots = {})
      : std::runtime_error(message), slots_(std::move(slots)) {}
  const std::vector<int>& slots() const { return slots_; }

 private:
  std::vector<int> slots_;
};

// The interface of a device. All calls come from one thread. At most num_stages() + 1 launched steps have not been
// waited for.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Sampling states held at once; at least the scheduler's max_batch_size. A finished request's slot is free only when
  // its last step has ended, so a few more than that keep the batch full. Each beam has a slot, too.
  virtual int num_slots() const = 0;

  // Stages that steps pass through one after the other, each computing another step. Two steps in flight continue the
  // same request only if num_stages() steps were launched from one to the other, unless the tokens of the later one are
  // known (prefill).
  virtual int num_stages() const { return 1; }

  // A request takes over `slot`, which no step in flight uses. `tokens` are its prompt (the first num_prompt) and what
  // it has generated before a preemption. `params` may be null; keep it, the request may end while its last step is in
  // flight. Throwing fails this request only. (Of a beam search's slots only one is set; the others lend their tables.)
  virtual void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                        int num_prompt) = 0;

  // Starts a step and returns without waiting for it. A row that continues an end id, which the device may have found
  // out and the host has not, may come to anything: its token, and what it writes to the cache.
  virtual void launch(const StepBatch& batch) = 0;

  // Waits for the oldest launched step and writes its results, reusing the buffers of `result`. Either call may throw
  // StepError (or anything: then no request is to blame in particular); the step then counts as ended.
  virtual void wait(StepResult& result) = 0;

  // Rows of the newest launched step, in order, that sit it out: the grammars that guide them were late, and others
  // would have waited. They come to no tokens, and of what they write to the cache only the known tokens before the
  // last one count. To be asked once the step before is over: what a row was to come to, no later step may continue.
  virtual std::span<const std::size_t> late_rows() const { return {}; }
  // Whether only the results say which rows were late (RowResult::is_late), and late_rows() none: then steps with rows
  // that may be late are awaited.
  virtual bool says_late_with_results() const { return false; }
};

}  // namespace tl
