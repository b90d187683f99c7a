// The sampling parameters of a request, and their limits, which are checked before a request reaches a slot.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sample/numbers.cuh"

namespace tl {

using TokenId = std::int32_t;

// Bounds on what one request can make the sampler store or compute; a request beyond a bound is refused, never cut.
struct SamplingLimits {
  static constexpr float kMaxLogitBias = 100.0f;  // [-100, 100], as OpenAI's API
  static constexpr int kMaxTokens = 1 << 24;
  static constexpr int kMaxLogprobs = 20;
  static constexpr int kMaxStopTokens = 256;
  static constexpr int kMaxLogitBiasEntries = 1024;
  static constexpr int kMaxBadWords = 1024;
  static constexpr int kMaxBadWordLength = 64;
};

// Names and meanings are those of TensorRT-LLM's and vLLM's SamplingParams; temperature 0 = greedy: the largest
// processed logit, ties to the lowest id.
struct SamplingParams : SamplingNumbers {
  std::uint64_t seed = 0;

  int max_tokens = 16;
  int min_tokens = 0;  // no end or stop token before this many generated tokens
  bool ignore_eos = false;
  std::vector<TokenId> end_ids;         // the model's end-of-sequence tokens
  std::vector<TokenId> stop_token_ids;  // the request's own end tokens

  std::vector<std::vector<TokenId>> bad_words;  // the last token of a sequence is banned after its other tokens
  std::vector<std::pair<TokenId, float>> logit_bias;
  std::optional<std::vector<TokenId>> allowed_token_ids;  // if set, all other tokens are impossible

  std::optional<int> logprobs;         // how many of the most likely tokens to report; 0 = the chosen one only
  std::optional<int> prompt_logprobs;  // likewise for each prompt token but the first
};

// Tokens that end a sequence: the model's, unless they are ignored, then the request's own.
std::vector<TokenId> ending_tokens(const SamplingParams& params);

// Everything wrong with `params` for a model of `vocab_size` tokens: one sentence each with the limit, the value found,
// and the remedy. Empty if valid. A list is reported once, by its first bad entry and the number of bad entries.
std::vector<std::string> violations(const SamplingParams& params, int vocab_size);

// The sentence about token ids that lie outside the vocabulary; nothing if all of them are inside.
std::optional<std::string> out_of_vocabulary(const char* name, std::span<const TokenId> tokens, int vocab_size);

}  // namespace tl
