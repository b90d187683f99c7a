// RequestSpec is what a user asks for; Request is that request in the scheduler, from its arrival to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "caches/kv_geometry.h"
#include "drafts/draft_pace.h"
#include "drafts/drafter.h"
#include "executor/prompt_rows.h"
#include "executor/step.h"
#include "schedule/clock.h"
#include "schedule/rank.h"

namespace tl {

using RequestId = std::uint64_t;

constexpr int kMinPriority = -100;
constexpr int kMaxPriority = 100;
constexpr int kMaxStopSequences = 64;
constexpr int kMaxStopSequenceLength = 256;

enum class FinishReason : std::uint8_t { kEndId, kStopSequence, kLength, kCancelled, kTimedOut, kError };

struct RequestSpec {
  std::vector<std::int32_t> prompt;
  int max_new_tokens = 16;
  int min_new_tokens = 0;  // end ids and stop sequences are ignored before this many generated tokens
  // Beam search with this many beams; 0 for none. The executor decides its tokens and its end: end_ids and
  // min_new_tokens are ignored, and only outputs are delivered, which include the sequences found.
  int num_beams = 0;
  // Whether this is an additional sequence of the same prompt (n, best_of). See Inbox.
  bool extra = false;
  bool guided = false;     // guided by a grammar: its rows may be late (StepExecutor::late_rows)
  int priority = 0;        // kMinPriority .. kMaxPriority; a greater one is served earlier
  std::uint64_t flow = 0;  // of an encoder's text: whose it is (Flows)
  // True to compute every prompt position, for prompt log probabilities or logits: the cache is not used.
  bool prompt_outputs = false;
  std::vector<std::int32_t> end_ids;
  std::vector<std::vector<std::int32_t>> stop_sequences;
  std::optional<Clock::duration> timeout;  // counted from submission
  std::string cache_salt;                  // requests with different salts never share cached blocks
  std::shared_ptr<const PromptRows> rows;  // embeddings in place of tokens of the prompt; null if there are none
  std::shared_ptr<const SlotParams> params;
};

// The limits of a request. Token ids t must satisfy 0 <= t < vocab_size.
struct RequestLimits {
  int vocab_size = 0;
  int max_input_len = 0;
  int max_seq_len = 0;  // prompt and generated tokens together
  int max_batch_size = 0;
  int num_blocks = 0;  // blocks of the KV cache
  KvGeometry geometry;
  std::int64_t token_row_bytes = 0;  // bytes of an embedding in place of a token; 0 if none are taken
};

// Throw LimitError that names the limit, the value and the remedy. validate_prompt() checks what requests of any kind
// have: prompt, priority and timeout.
void validate_prompt(const RequestSpec& spec, int max_input_len, int vocab_size);
// Checks the rows in place of tokens of an encoder's request, which a vision tower has and others have not.
void validate_rows(const RequestSpec& spec, std::int64_t token_row_bytes, std::int64_t tokens_per_row);
void validate(const RequestSpec& spec, const RequestLimits& limits);

struct RequestTimings {
  double queue_seconds = 0;        // submission to first admission
  double first_token_seconds = 0;  // submission to first token
  double seconds_per_token = 0;    // mean over the tokens after the first
  double total_seconds = 0;
  int num_prompt_tokens = 0;
  int num_cached_tokens = 0;     // tokens of the prompt that were cached at first admission
  int num_generated_tokens = 0;  // in a beam search, those of each beam
  int num_preemptions = 0;
};

// Consecutive steps in which the masks of the request's rows were late (StepExecutor::late_rows).
struct Lateness {
  int num_steps = 0;
  bool rests = false;  // the request gets no rows for now
  Clock::time_point since;
};

// The fields that every step reads lie in the first cache line and the next one (the beginning of `spec`), because the
// requests of a full batch exceed the nearest caches.
struct alignas(64) Request {
  static constexpr int kForEver = -1;

  Request(RequestId id, RequestSpec spec, Clock::time_point now);

  RequestId id;
  std::vector<std::int32_t> tokens;  // prompt, then generated tokens the host knows
  std::uint64_t end_bits = 0;        // bit t % 64 is set if token t is an end id or ends a stop sequence
  int num_prompt;
  int num_pending = 0;    // rows in flight that sample; each yields at least one token
  int outputs_from = 0;   // prompt outputs before this position are delivered or in flight
  int max_scheduled = 0;  // the most tokens ever scheduled; recomputing below that is repeated work
  int num_searched = 0;   // tokens that a beam search has added to each beam
  // Pauses of drafts that may be wrong, and of forced drafts. 0: no pause; else the pause ends at the next step whose
  // number is a multiple of the value.
  int rest = kForEver, forced_rest = kForEver;
  RequestSpec spec;
  Rank rank;
  std::uint64_t sampling_step = 0;  // the newest step in flight that samples for this request
  std::uint64_t prefill_step = 0;   // the newest step that computes some of its known tokens
  Lateness late;
  std::vector<std::uint64_t> hashes;        // see TokenChain
  std::unique_ptr<DraftState> draft_state;  // null: its rows bring no drafts
  DraftPace pace;
  DraftPace forced_pace{DraftPace::kNearlySure};
  bool brings_forced = false;  // whether its drafts in flight are forced by the grammar
  int max_draft_len = 0;       // the most drafts of a row
  int parted_at = 0;           // where its prompt parts from those that the cache knows, at the end of a block
  int num_holds = 0;           // times admission was postponed while a shared prefix was being computed
  int num_passed = 0;          // short prompts admitted before this request
  int num_preemptions = 0;
  int num_cached_tokens = 0;
  Clock::time_point submitted;
  std::optional<Clock::time_point> deadline, admitted, first_token;

  bool is_search() const { return spec.num_beams > 0; }
  bool drafts() const { return rest == 0 || forced_rest == 0; }
  bool drafts_in(std::uint64_t step) const { return is_over(rest, step) || is_over(forced_rest, step); }
  static bool is_over(int rest, std::uint64_t step) {
    return rest == 0 || (rest > 0 && step % static_cast<std::uint64_t>(rest) == 0);
  }
  int max_rows() const { return is_search() ? spec.num_beams : 1; }  // the most rows in a step
  // Counts one token for each row in flight. (Tokens of beams are not in `tokens`.)
  int num_total() const { return static_cast<int>(tokens.size()) + num_pending; }
  int num_generated() const { return num_total() - num_prompt; }
  bool all_scheduled() const { return num_generated() >= spec.max_new_tokens; }
  // The number of positions whose keys and values may be written; those of the last token are not needed.
  int max_kv_len() const { return num_prompt + spec.max_new_tokens - 1; }
  // The most KV cache blocks that the request can hold at once after its first `num_computed` tokens have been
  // computed.
  int max_blocks(const KvGeometry& geometry, int num_computed) const;

  // Why the newest of `tokens`, a generated one, ends the request; empty if it does not.
  std::optional<FinishReason> finish_reason() const;
  RequestTimings timings(Clock::time_point now) const;
};

}  // namespace tl
