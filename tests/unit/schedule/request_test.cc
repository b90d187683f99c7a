// Request: which generated tokens end it.
#include "schedule/request.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check.h"

namespace {

using tl::FinishReason;
using Tokens = std::vector<std::int32_t>;

std::string text_of(const Tokens& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) text += "<" + std::to_string(token) + ">";
  return text;
}

// An independent statement of the rule: the text ends in a stop sequence of one or more tokens.
std::optional<FinishReason> expected(const tl::RequestSpec& spec, const Tokens& generated) {
  const std::string text = text_of(generated);
  if (std::ssize(generated) >= spec.min_new_tokens) {
    const auto is_newest = [&](std::int32_t token) { return text.ends_with(text_of({token})); };
    const auto is_end = [&](const Tokens& stop) { return text.ends_with(text_of(stop)); };
    if (std::ranges::any_of(spec.end_ids, is_newest)) return FinishReason::kEndId;
    if (std::ranges::any_of(spec.stop_sequences, is_end)) return FinishReason::kStopSequence;
  }
  if (std::ssize(generated) == spec.max_new_tokens) return FinishReason::kLength;
  return std::nullopt;
}

struct Draw {
  int operator()(int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); }
  // Returns one of a few tokens, some of which differ by a multiple of 64.
  std::int32_t token() { return (*this)(3) + 64 * (*this)(3) + 126 * (*this)(2); }
  Tokens tokens(int n) {
    Tokens tokens(static_cast<std::size_t>(n));
    std::ranges::generate(tokens, [this] { return token(); });
    return tokens;
  }
  std::mt19937_64 random;
};

TEST(what_ends_a_request) {
  int num_found[6] = {};
  for (int seed = 0; seed < 5000; ++seed) {
    Draw draw{.random = std::mt19937_64(static_cast<std::uint64_t>(seed))};
    tl::RequestSpec spec;
    spec.prompt = draw.tokens(1 + draw(4));
    spec.max_new_tokens = 1 + draw(40);
    spec.min_new_tokens = draw(spec.max_new_tokens + 1);
    spec.end_ids = draw.tokens(draw(3));
    for (int i = draw(3); i > 0; --i) spec.stop_sequences.push_back(draw.tokens(1 + draw(3)));
    tl::Request request(1, spec, {});
    Tokens generated;
    for (std::optional<FinishReason> reason; !reason;) {
      generated.push_back(draw.token());
      request.tokens.push_back(generated.back());
      reason = request.finish_reason();
      CHECK(reason == expected(spec, generated));
      if (reason) ++num_found[static_cast<int>(*reason)];
    }
  }
  for (const auto reason : {FinishReason::kEndId, FinishReason::kStopSequence, FinishReason::kLength}) {
    CHECK(num_found[static_cast<int>(reason)] > 500);
  }
}

}  // namespace
