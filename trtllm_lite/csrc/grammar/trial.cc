#include "grammar/trial.h"

#include <array>
#include <bit>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace tl::llguidance {
namespace {

constexpr int kMostForcedTokens = 8;
constexpr int kTakenBackEvery = 8;  // the number of tokens after which some are rolled back

// Draws one of the mask's tokens below `vocab_size`, all equally likely; empty if there is none.
std::optional<std::int32_t> draw(std::span<const std::uint32_t> mask, std::uint32_t vocab_size, std::mt19937& random) {
  std::vector<std::int32_t> allowed;
  for (std::uint32_t token = 0; token < vocab_size; ++token) {
    if (mask[token / 32] >> (token % 32) & 1) allowed.push_back(static_cast<std::int32_t>(token));
  }
  if (allowed.empty()) return std::nullopt;
  return allowed[std::uniform_int_distribution<std::size_t>(0, allowed.size() - 1)(random)];
}

void write(GrammarMatcher& matcher, TokenForcer* forcer, std::uint32_t vocab_size, int num_tokens) {
  std::mt19937 random(0);
  std::vector<std::uint32_t> mask(mask_words(vocab_size));
  for (int i = 1; i <= num_tokens; ++i) {
    matcher.fill_mask(mask);
    const std::optional<std::int32_t> token = draw(mask, vocab_size, random);
    if (!token) return;
    const std::array<std::int32_t, 1> tokens{*token};
    matcher.accept(tokens);
    if (i % kTakenBackEvery == 0) {
      matcher.roll_back(1);
      matcher.accept(tokens);
    }
    if (forcer == nullptr) continue;
    forcer->forced_tokens(kMostForcedTokens);
    forcer->num_allowed(tokens);
    forcer->accept(tokens);
  }
}

}  // namespace

void write_at_random(const Grammar& grammar, std::uint32_t vocab_size, int num_tokens) {
  const std::unique_ptr<GrammarMatcher> matcher = grammar.start();
  const std::unique_ptr<TokenForcer> forcer = grammar.start_forcer();
  try {
    write(*matcher, forcer.get(), vocab_size, num_tokens);
  } catch (const GrammarError&) {  // the text has reached a limit
  }
}

}  // namespace tl::llguidance
