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

#include "executor/beam_move.h"
#include "executor/prompt_rows.h"

namespace tl {

// Executor data that the scheduler does not look into: the sampling parameters made from a request's options, and the
// outputs other than tokens (log probabilities, logits). Only the executor and its bindings know the concrete types.
struct SlotParams {
  virtual ~SlotParams() = default;
};
struct RowOutputs {
  virtual ~RowOutputs() = default;
};

// In StepBatch::token_ids: the token that this slot sampled last, which the host does not know yet.
constexpr std::int32_t kLastSampled = -1;

// The most draft tokens of a row (StepRow).
constexpr int kMaxDrafts = 8;

// The tokens that a row generates: its accepted drafts and one more. Compact, because most rows generate one token.
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
  // Keeps the first `count` tokens.
  void cut(int count) { size_ = count; }

 private:
  std::int32_t size_ = 0;
  std::int32_t first_ = 0;
  std::unique_ptr<std::array<std::int32_t, kMaxDrafts + 1>> all_;  // allocated for more than one token
};

enum class CopyKind : std::uint8_t { kDeviceToDevice, kDeviceToHost, kHostToDevice };

// An order to copy one whole KV block (keys and values of every layer).
struct CopyOrder {
  CopyKind kind;
  std::int32_t src;
  std::int32_t dst;
};

// Sets entry `index` of the slot's block table in a cache group to `block` from this step on. Entries that no window
// reaches any more are not updated: steps do not read the blocks that they name.
struct TableUpdate {
  std::int32_t slot;
  std::int32_t group;
  std::int32_t index;
  std::int32_t block;
};

// Identifies the request of a row for the scheduler; executors ignore it.
struct RequestRef {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend bool operator==(RequestRef, RequestRef) = default;
};

// A row of a step: tokens of one sequence. The last `num_drafts` of them are drafts. The device samples after the known
// tokens and after each draft; a draft is accepted if it equals the token sampled in its place and all drafts before it
// were accepted.
//
// A beam search first has a row for its prompt, then one for each beam. The rows of its beams are consecutive, best
// beam first, and share `request_slot`.
struct StepRow {
  RequestRef request;
  std::int32_t slot;           // the slot whose block table the row uses
  std::int32_t request_slot;   // the slot given to set_slot(): `slot`, except for beams
  std::int32_t first_token;    // index into StepBatch::token_ids
  std::int32_t num_tokens;     // >= 1
  std::int32_t past_len;       // tokens of this sequence already in the cache
  std::int32_t num_generated;  // tokens that the request sampled before this row: the sampler's counter
  std::int32_t outputs_from;   // prompt outputs of positions before this one are not repeated
  std::int32_t num_drafts;     // how many of its last tokens are drafts
  bool sample;                 // sample the next token: the row has all known tokens of the sequence

  // Whether the row decodes: it has one token besides drafts. (The last token of a prompt costs as much as a generated
  // one.)
  bool decodes() const { return num_tokens == 1 + num_drafts; }
};

// What becomes of a step that is paused (StepResult::paused) when another one is launched.
enum class StepTurn : std::uint8_t {
  kAnew,    // it is given up; usually there is none
  kBeside,  // it waits: the other step is within StepExecutor::beside_paused()
  kGoOn,    // it goes on: the other step is the rest of it, and has the same rows
};

// The most rows and tokens of a step.
struct StepBounds {
  int max_rows = 0, max_tokens = 0;
};

// A step. The executor carries it out in this order: copies, table_updates, rows. Steps run one after the other in
// launch order. The batch must not change until wait() has returned its results.
struct StepBatch {
  std::uint64_t step = 0;  // the step's number, greater than the previous step's
  std::vector<CopyOrder> copies;
  std::vector<TableUpdate> table_updates;
  std::vector<StepRow> rows;  // may be empty when there are copies
  std::vector<std::int32_t> token_ids;
  // Rows that take the place of tokens of an encoder's texts, by row; empty if none has any.
  std::vector<std::shared_ptr<const PromptRows>> token_rows;
  int num_decode_tokens = 0;  // tokens of rows that decode; other rows are prefill
  bool awaited = false;       // a request in it can only go on when the results are known
  double draft_seconds = 0;   // time taken to propose its drafts before its launch
  StepTurn turn = StepTurn::kAnew;
  // The executor may pause the step when it has run for so many seconds, or, if steps run on while they are paused, at
  // any time; 0: it must not.
  double pause_after = 0;

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
    token_rows.clear();
    num_decode_tokens = 0;
    awaited = false;
    draft_seconds = 0;
    turn = StepTurn::kAnew;
    pause_after = 0;
  }
};

// The result of a row. A beam search uses only the result of its first row.
struct RowResult {
  TokenRun tokens;              // empty for rows that are not sampled, are late, or belong to a beam search
  std::vector<BeamMove> moves;  // for a beam search's sampled rows: the beams of its next step; empty if it is over
  std::unique_ptr<RowOutputs> outputs;  // null unless the request asked for some
  std::string error;     // if not empty, this request alone fails (for example, its logits are not finite)
  bool is_late = false;  // see StepExecutor::late_rows
};

struct StepResult {
  std::vector<RowResult> rows;  // one per row of the batch, in its order
  double compute_seconds = 0;   // measured on the device; 0 if unknown
  double copy_seconds = 0;
  std::vector<int> woken_slots;  // slots of rows that were late, now or before, and whose masks are now ready
  bool paused = false;  // the step is not over, and its rows have no results yet; a later step can go on with it
};

// The failure of a whole step, caused by the requests in `slots`. If it names none, every running request is lost.
class StepError : public std::runtime_error {
 public:
  explicit StepError(const std::string& message, std::vector<int> slots = {})
      : std::runtime_error(message), slots_(std::move(slots)) {}
  const std::vector<int>& slots() const { return slots_; }

 private:
  std::vector<int> slots_;
};

// The interface of a device, called from one thread. At most num_stages() + 1 launched steps may lack their wait().
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // The number of sampling states; at least the scheduler's max_batch_size. The slot of a finished request is free only
  // after its last step has ended, so a few more slots keep the batch full. Each beam has a slot too.
  virtual int num_slots() const = 0;

  // The number of pipeline stages that steps pass through; each stage computes a different step at a time. Two steps in
  // flight may continue the same request only if they are at least num_stages() launches apart, unless the tokens of
  // the later one are known (prefill).
  virtual int num_stages() const { return 1; }

  // Seconds of a step of `num_tokens` tokens that only decodes, measured before the first request: without the time
  // that texts add as they grow. 0 if nothing was measured.
  virtual double decode_seconds(int /*num_tokens*/) const { return 0; }

  // Gives `slot`, which no step in flight uses, to a request. `tokens`: its prompt (the first num_prompt) and what it
  // generated before a preemption. `params` may be null; keep it, because the request may end while its last step is in
  // flight. An exception fails only this request. (A beam search sets one of its slots; its others only lend their
  // block tables.)
  virtual void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                        int num_prompt) = 0;

  // Starts a step and returns without waiting for it. A row that continues an end id (which the device may have seen
  // before the host) may have any token and any cache content as its result.
  virtual void launch(const StepBatch& batch) = 0;

  // Waits for the oldest launched step and writes its results into `result`, whose buffers are reused. launch() and
  // wait() may throw StepError, or any exception if no particular request is to blame; the step then counts as ended.
  virtual void wait(StepResult& result) = 0;

  // Rows of the newest launched step, in order, whose masks were late, so that they generate no tokens. Of what they
  // write to the cache, only the known tokens before the last one count. Called once the step before has ended and
  // before a later step continues such a row.
  virtual std::span<const std::size_t> late_rows() const { return {}; }
  // True if late rows are only known with the results (RowResult::is_late) and late_rows() is always empty. Steps with
  // rows that may be late are then awaited.
  virtual bool says_late_with_results() const { return false; }

  // What a step may compute while another one is paused; nothing if steps are never paused. At most one step is paused
  // at a time, and it is none that runs beside another.
  virtual StepBounds beside_paused() const { return {}; }
  // Whether a step runs on while it is paused, as on a GPU that computes two steps at once. Then it is never given up.
  // It is paused as soon as it is launched, and once wake() was called, so that the scheduler can launch others.
  virtual bool runs_while_paused() const { return false; }
  // Called from any thread when there is mail for the scheduler.
  virtual void wake() {}
};

}  // namespace tl
