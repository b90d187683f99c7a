#include "sampling/sampling_params.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "sampling/number_rules.h"

namespace tl {
namespace {

using Limits = SamplingLimits;
using Messages = std::vector<std::string>;

// The shortest decimal text that reads back as the number.
template <typename T>
std::string text(T value) {
  char buffer[32];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

template <typename T>
void check_range(Messages& out, const char* name, T value, std::type_identity_t<T> low, std::type_identity_t<T> high,
                 const char* remedy) {
  if (value >= low && value <= high) return;  // NaN fails both comparisons
  out.push_back(std::string(name) + " must be from " + text(low) + " to " + text(high) + ", not " + text(value) + "; " +
                remedy);
}

void check_count(Messages& out, const char* name, std::size_t count, int limit) {
  if (count <= static_cast<std::size_t>(limit)) return;
  out.push_back(std::string(name) + " may have at most " + std::to_string(limit) + " entries, not " +
                std::to_string(count) + "; send the ones that matter most");
}

void check_tokens(Messages& out, const char* name, std::span<const TokenId> tokens, int vocab_size) {
  if (auto message = out_of_vocabulary(name, tokens, vocab_size)) out.push_back(*message);
}

template <typename T>
void check_number(Messages& out, T value, const NumberRule<T>& rule) {
  if (rule.or_zero && value == 0) return;
  if (rule.high) return check_range(out, rule.name, value, rule.low, *rule.high, rule.remedy);
  if (value >= rule.low) return;
  out.push_back(std::string(rule.name) + " must be " + text(rule.low) + " or more, not " + text(value) + "; " +
                rule.remedy);
}

void check_numbers(Messages& out, const SamplingParams& p) {
  visit_numbers([&](auto member, const auto& rule) { check_number(out, p.*member, rule); });
  check_range(out, "max_tokens", p.max_tokens, 1, Limits::kMaxTokens, "ask for fewer tokens, but at least one");
  check_range(out, "min_tokens", p.min_tokens, 0, std::clamp(p.max_tokens, 0, Limits::kMaxTokens),
              "lower it or raise max_tokens");
}

void check_logprobs(Messages& out, const char* name, std::optional<int> value, int vocab_size) {
  if (!value) return;
  check_range(out, name, *value, 0, std::min(Limits::kMaxLogprobs, vocab_size),
              "ask for fewer, or leave it out to report none");
}

void check_logit_bias(Messages& out, const SamplingParams& p, int vocab_size) {
  check_count(out, "logit_bias", p.logit_bias.size(), Limits::kMaxLogitBiasEntries);
  std::vector<TokenId> tokens;
  for (const auto& [token, bias] : p.logit_bias) tokens.push_back(token);
  check_tokens(out, "logit_bias", tokens, vocab_size);
  const auto bad = std::find_if_not(p.logit_bias.begin(), p.logit_bias.end(),
                                    [](const auto& entry) { return std::fabs(entry.second) <= Limits::kMaxLogitBias; });
  if (bad != p.logit_bias.end()) {
    check_range(out, "logit_bias", bad->second, -Limits::kMaxLogitBias, Limits::kMaxLogitBias,
                "use bad_words to ban a token, allowed_token_ids to force one");
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twin = std::adjacent_find(tokens.begin(), tokens.end());
  if (twin != tokens.end()) {
    out.push_back("logit_bias must name a token once, not token " + std::to_string(*twin) +
                  " twice; add the biases up into one entry");
  }
}

void check_bad_words(Messages& out, const SamplingParams& p, int vocab_size) {
  check_count(out, "bad_words", p.bad_words.size(), Limits::kMaxBadWords);
  for (std::size_t i = 0; i < p.bad_words.size(); ++i) {
    const auto& word = p.bad_words[i];
    const std::string name = "bad_words[" + std::to_string(i) + "]";
    const std::size_t before = out.size();
    check_range(out, (name + " length").c_str(), word.size(), 1, Limits::kMaxBadWordLength, "drop it or shorten it");
    check_tokens(out, name.c_str(), word, vocab_size);
    if (word.size() == 1 && std::count(p.end_ids.begin(), p.end_ids.end(), word[0]) > 0) {
      out.push_back(name + " must not be an end token of the model, and " + std::to_string(word[0]) +
                    " is one; use ignore_eos or min_tokens");
    }
    if (out.size() > before) return;
  }
}

void check_stops(Messages& out, const SamplingParams& p, int vocab_size) {
  check_count(out, "end_ids", p.end_ids.size(), Limits::kMaxStopTokens);
  check_tokens(out, "end_ids", p.end_ids, vocab_size);
  check_count(out, "stop_token_ids", p.stop_token_ids.size(), Limits::kMaxStopTokens);
  check_tokens(out, "stop_token_ids", p.stop_token_ids, vocab_size);
}

}  // namespace

std::optional<std::string> out_of_vocabulary(const char* name, std::span<const TokenId> tokens, int vocab_size) {
  const auto outside = [vocab_size](TokenId token) { return token < 0 || token >= vocab_size; };
  const auto first = std::find_if(tokens.begin(), tokens.end(), outside);
  if (first == tokens.end()) return std::nullopt;
  const auto num_bad = std::count_if(first, tokens.end(), outside);
  return std::string(name) + " must hold token ids from 0 to " + std::to_string(vocab_size - 1) + ", not " +
         std::to_string(*first) + " (entry " + std::to_string(first - tokens.begin()) + "; " + std::to_string(num_bad) +
         " outside in all); use this model's tokenizer";
}

std::vector<TokenId> ending_tokens(const SamplingParams& params) {
  std::vector<TokenId> tokens;
  if (!params.ignore_eos) tokens = params.end_ids;
  tokens.insert(tokens.end(), params.stop_token_ids.begin(), params.stop_token_ids.end());
  return tokens;
}

std::vector<std::string> violations(const SamplingParams& params, int vocab_size) {
  Messages out;
  check_numbers(out, params);
  check_logprobs(out, "logprobs", params.logprobs, vocab_size);
  check_logprobs(out, "prompt_logprobs", params.prompt_logprobs, vocab_size);
  check_stops(out, params, vocab_size);
  check_logit_bias(out, params, vocab_size);
  check_bad_words(out, params, vocab_size);
  if (params.allowed_token_ids) {
    check_range(out, "allowed_token_ids length", params.allowed_token_ids->size(), 1, vocab_size,
                "list each allowed token once, or leave it out to allow all");
    check_tokens(out, "allowed_token_ids", *params.allowed_token_ids, vocab_size);
  }
  return out;
}

}  // namespace tl
