#include "schedule/request.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace tl {
namespace {

constexpr std::size_t kMaxEndIds = 256;
constexpr std::size_t kMaxSaltLength = 256;

// The most tokens for which memory is reserved at first, because max_new_tokens may be far larger than what will come.
constexpr int kReservedTokens = 4096;

std::uint64_t bit_of(std::int32_t token) { return std::uint64_t{1} << (static_cast<std::uint32_t>(token) % 64); }

void check(bool ok, const std::string& expected, const std::string& found, const std::string& remedy) {
  if (!ok) throw LimitError("expected " + expected + ", found " + found + ": " + remedy);
}

void check_range(const std::string& name, std::int64_t value, std::int64_t low, std::int64_t high,
                 const std::string& remedy) {
  if (low <= value && value <= high) return;
  check(false, name + " in " + std::to_string(low) + " .. " + std::to_string(high), std::to_string(value), remedy);
}

void check_tokens(const std::string& name, const std::vector<std::int32_t>& tokens, int vocab_size) {
  const auto is_outside = [&](std::int32_t token) { return token < 0 || token >= vocab_size; };
  const auto found = std::ranges::find_if(tokens, is_outside);  // words are made for an error only: prompts are long
  if (found == tokens.end()) return;
  check_range("token ids of " + name, *found, 0, vocab_size - 1, "use the tokenizer that belongs to this engine");
}

void check_stop_conditions(const RequestSpec& spec, int vocab_size) {
  check_range("number of end_ids", std::ssize(spec.end_ids), 0, kMaxEndIds, "pass fewer");
  check_tokens("end_ids", spec.end_ids, vocab_size);
  check_range("number of stop sequences", std::ssize(spec.stop_sequences), 0, kMaxStopSequences, "pass fewer");
  for (const auto& sequence : spec.stop_sequences) {
    check_range("length of a stop sequence", std::ssize(sequence), 1, kMaxStopSequenceLength,
                "leave empty ones out and shorten long ones");
    check_tokens("a stop sequence", sequence, vocab_size);
  }
}

// Each beam has its own blocks, from the first block that the prompt does not fill.
void check_beams(const RequestSpec& spec, const RequestLimits& limits) {
  check_range("num_beams", spec.num_beams, 1, limits.max_batch_size,
              "each beam takes a place in the batch; search with fewer or raise max_batch_size");
  check(limits.geometry.can_fork(), "requests without num_beams, because beams would need states of their own",
        std::to_string(spec.num_beams) + " beams for a model with recurrent layers", "leave num_beams out");
  check(spec.stop_sequences.empty(), "no stop sequences in a beam search", std::to_string(spec.stop_sequences.size()),
        "leave them out or pass stop_token_ids");
  const int num_prompt = static_cast<int>(spec.prompt.size());
  const int num_needed =
      limits.geometry.most_blocks_of_search(num_prompt, num_prompt + spec.max_new_tokens - 1, spec.num_beams);
  check(num_needed <= limits.num_blocks,
        "a beam search that fits into the KV cache of " + std::to_string(limits.num_blocks) + " blocks of " +
            std::to_string(limits.geometry.tokens_per_block()) + " tokens",
        std::to_string(spec.num_beams) + " beams that may need " + std::to_string(num_needed) + " blocks",
        "search with fewer beams, lower max_new_tokens or give the cache more memory");
}

void check_rows(const PromptRows& rows, std::int64_t num_prompt, std::int64_t token_row_bytes) {
  check(token_row_bytes > 0, "a prompt of tokens alone", std::to_string(rows.positions.size()) + " embeddings",
        "build the engine with --enable_prompt_embeds");
  check(std::cmp_equal(rows.row_bytes, token_row_bytes),
        "prompt embeddings of " + std::to_string(token_row_bytes) + " bytes each", std::to_string(rows.row_bytes),
        "pass rows of the model's hidden size");
  for (std::size_t i = 0; i < rows.positions.size(); ++i) {
    check_range("positions of prompt embeddings", rows.positions[i], i == 0 ? 0 : rows.positions[i - 1] + 1,
                num_prompt - 1, "pass ascending positions of the prompt");
  }
}

}  // namespace

void validate_prompt(const RequestSpec& spec, int max_input_len, int vocab_size) {
  check_range("prompt length", std::ssize(spec.prompt), 1, max_input_len, "shorten the prompt or raise max_input_len");
  check_range("priority", spec.priority, kMinPriority, kMaxPriority, "scale the priorities");
  check(!spec.timeout || *spec.timeout > Clock::duration::zero(), "a timeout above 0",
        spec.timeout ? std::to_string(seconds(*spec.timeout)) + " s" : "none", "leave it out for no timeout");
  check_tokens("the prompt", spec.prompt, vocab_size);
}

void validate_rows(const RequestSpec& spec, std::int64_t token_row_bytes, std::int64_t tokens_per_row) {
  check((spec.rows != nullptr) == (tokens_per_row > 0), tokens_per_row > 0 ? "patches of an image" : "a text of tokens",
        spec.rows ? "patches" : "none", "pass the engine's kind of input");
  if (!spec.rows) return;
  check_rows(*spec.rows, std::ssize(spec.prompt), token_row_bytes);
  check(std::ssize(spec.prompt) / tokens_per_row > 0 && std::ssize(spec.prompt) % tokens_per_row == 0,
        "a multiple of " + std::to_string(tokens_per_row) + " patches", std::to_string(spec.prompt.size()),
        "pass whole squares of patches");
}

void validate(const RequestSpec& spec, const RequestLimits& limits) {
  validate_prompt(spec, limits.max_input_len, limits.vocab_size);
  const std::int64_t num_prompt = std::ssize(spec.prompt);
  check_range("max_new_tokens", spec.max_new_tokens, 1, limits.max_seq_len - num_prompt,
              "the prompt has " + std::to_string(num_prompt) + " tokens and max_seq_len is " +
                  std::to_string(limits.max_seq_len) + "; generate fewer or raise max_seq_len");
  check_range("min_new_tokens", spec.min_new_tokens, 0, spec.max_new_tokens, "lower it to max_new_tokens");
  check_range("length of cache_salt", std::ssize(spec.cache_salt), 0, kMaxSaltLength, "pass a digest of it");
  if (spec.rows) check_rows(*spec.rows, num_prompt, limits.token_row_bytes);
  check_stop_conditions(spec, limits.vocab_size);
  if (spec.num_beams != 0) check_beams(spec, limits);
}

Request::Request(RequestId id, RequestSpec request_spec, Clock::time_point now)
    : id(id),
      tokens(std::move(request_spec.prompt)),
      num_prompt(static_cast<int>(tokens.size())),
      spec(std::move(request_spec)),
      submitted(now) {
  tokens.reserve(tokens.size() + std::min(spec.max_new_tokens, kReservedTokens));
  for (const std::int32_t token : spec.end_ids) end_bits |= bit_of(token);
  for (const auto& stop : spec.stop_sequences) end_bits |= bit_of(stop.back());
  // A timeout too large for the clock counts as none.
  if (spec.timeout && *spec.timeout < Clock::time_point::max() - now) deadline = now + *spec.timeout;
}

int Request::max_blocks(const KvGeometry& geometry, int num_computed) const {
  if (is_search()) return geometry.most_blocks_of_search(num_prompt, max_kv_len(), spec.num_beams);
  const int num_unsettled = max_draft_len + (spec.guided ? 1 : 0);
  return geometry.most_blocks(std::max(num_total() - num_computed, 1 + num_unsettled), max_kv_len());
}

std::optional<FinishReason> Request::finish_reason() const {
  const int num_known = static_cast<int>(tokens.size()) - num_prompt;
  if ((end_bits & bit_of(tokens.back())) != 0 && num_known >= spec.min_new_tokens) {
    if (std::ranges::find(spec.end_ids, tokens.back()) != spec.end_ids.end()) return FinishReason::kEndId;
    for (const auto& stop : spec.stop_sequences) {
      if (std::ssize(stop) <= num_known && std::equal(stop.rbegin(), stop.rend(), tokens.rbegin())) {
        return FinishReason::kStopSequence;
      }
    }
  }
  if (num_known >= spec.max_new_tokens) return FinishReason::kLength;
  return std::nullopt;
}

RequestTimings Request::timings(Clock::time_point now) const {
  RequestTimings t;
  t.num_prompt_tokens = num_prompt;
  t.num_cached_tokens = num_cached_tokens;
  t.num_generated_tokens = static_cast<int>(tokens.size()) - num_prompt + num_searched;
  t.num_preemptions = num_preemptions;
  t.total_seconds = seconds(now - submitted);
  t.queue_seconds = seconds(admitted.value_or(now) - submitted);
  if (first_token) {
    t.first_token_seconds = seconds(*first_token - submitted);
    if (t.num_generated_tokens > 1) t.seconds_per_token = seconds(now - *first_token) / (t.num_generated_tokens - 1);
  }
  return t;
}

}  // namespace tl
