// Grammars over the token sequences of the fake device.
#pragma once

#include "grammar/grammar.h"
#include "random_load.h"

// At every fourth position `kRun` tokens are forced: those that the fake device will sample. Elsewhere, multiples of
// five that it will not sample are forbidden.
constexpr int kRun = 3;

class FakeForcer : public tl::TokenForcer {
 public:
  FakeForcer(Tokens prompt, std::uint64_t seed) : text_(std::move(prompt)), seed_(seed) {}
  void accept(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens) {
      CHECK(token == next_token(seed_, text_));
      if (token % 200 == 199) throw tl::GrammarError("a limit of the library");
      text_.push_back(token);
    }
  }
  std::vector<std::int32_t> forced_tokens(int most) override {
    if (next_token(seed_ + 1, text_) % 4 != 0) return {};
    return reference(text_, seed_, std::min(most, kRun));
  }
  int num_allowed(std::span<const std::int32_t> tokens) override {
    Tokens text = text_;
    int num = 0;
    for (const std::int32_t token : tokens) {
      if (token != next_token(seed_, text) && token % 5 == 0) break;
      text.push_back(token);
      ++num;
    }
    return num;
  }

 private:
  Tokens text_;
  std::uint64_t seed_;
};

class FakeGrammar : public tl::Grammar {
 public:
  explicit FakeGrammar(const tl::Request& request)
      : prompt_(request.tokens), seed_(dynamic_cast<const FakeParams&>(*request.spec.params).seed) {}
  std::unique_ptr<tl::GrammarMatcher> start() const override { return nullptr; }
  std::unique_ptr<tl::TokenForcer> start_forcer() const override {
    return std::make_unique<FakeForcer>(prompt_, seed_);
  }
  std::uint64_t seed() const { return seed_; }

 private:
  Tokens prompt_;
  std::uint64_t seed_;
};

// Three of four requests have a grammar.
inline std::shared_ptr<const tl::Grammar> grammar_of(const tl::Request& request) {
  auto grammar = std::make_shared<FakeGrammar>(request);
  return grammar->seed() % 4 == 0 ? nullptr : grammar;
}
