#include "grammar/reasoning.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tl::llguidance {
namespace {

void set(std::span<std::uint32_t> mask, std::int64_t token, bool is_allowed) {
  const std::uint32_t bit = std::uint32_t{1} << (token % 32);
  std::uint32_t& word = mask[static_cast<std::size_t>(token) / 32];
  word = is_allowed ? word | bit : word & ~bit;
}

class ReasoningMatcher final : public GrammarMatcher {
 public:
  ReasoningMatcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const ThoughtTokens> tokens)
      : grammar_(std::move(grammar)),
        tokens_(std::move(tokens)),
        whole_(grammar_->start()),
        places_{{.state = tokens_->thoughts().start()}} {}

  void fill_mask(std::span<std::uint32_t> mask) override {
    const auto [state, is_whole, num_behind] = places_.back();
    if (state == Thoughts::kNone) return whole_->fill_mask(mask);
    if (state == Thoughts::kBehind) return behind().fill_mask(mask);
    if (!tokens_->thoughts().is_undecided(state)) {
      std::ranges::fill(mask, ~std::uint32_t{0});
      for (const std::uint32_t token : tokens_->end_ids()) set(mask, token, false);
    } else if (is_whole) {
      whole_->fill_mask(mask);
    } else {
      std::ranges::fill(mask, 0);
    }
    for (const std::int32_t token : tokens_->beginning(state)) set(mask, token, true);
    for (const std::int32_t token : tokens_->crossing(state)) {
      const auto answer = tokens_->answer_in(state, token);
      set(mask, token, answer && behind().num_allowed(*answer) == answer->size());
    }
  }

  void accept(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens) places_.push_back(accepted(places_.back(), token));
  }

  // How many of the leading tokens continue the text after thoughts; 0 if they cannot.
  std::size_t num_allowed(std::span<const std::int32_t> tokens) override {
    std::size_t num = 0;
    std::vector<std::uint32_t> mask(mask_words(static_cast<std::size_t>(tokens_->num_tokens())));
    for (const std::int32_t token : tokens) {
      fill_mask(mask);
      if ((mask[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) == 0) break;
      accept({&token, 1});
      ++num;
    }
    roll_back(num);
    return num;
  }

  void roll_back(std::size_t count) override {
    if (count >= places_.size()) throw GrammarError("more tokens are taken back than there are");
    std::size_t num_whole = 0, num_behind = 0;
    for (; count > 0; --count) {
      num_whole += places_.back().is_whole ? 1 : 0;
      num_behind += places_.back().num_behind;
      places_.pop_back();
    }
    whole_->roll_back(num_whole);
    if (num_behind > 0) behind().roll_back(num_behind);
  }

 private:
  // The state after each token.
  struct Place {
    ThoughtTokens::State state;
    bool is_whole = true;          // whether the text so far, read as an answer without thoughts, fits the grammar
    std::uint32_t num_behind = 0;  // the number of tokens that spell the part of this token after the thoughts
  };

  GrammarMatcher& behind() {
    if (!behind_) behind_ = grammar_->start();
    return *behind_;
  }

  Place accepted(const Place& before, std::int32_t token) {
    if (before.state == Thoughts::kBehind) {
      behind().accept({&token, 1});
      return {.state = before.state, .is_whole = false, .num_behind = 1};
    }
    const ThoughtTokens::State state = tokens_->after(before.state, token);
    if (state == Thoughts::kNone) {
      if (!before.is_whole) throw GrammarError("a token continues neither thoughts nor an answer");
      whole_->accept({&token, 1});
      return {.state = state};
    }
    if (tokens_->thoughts().is_undecided(state)) {
      const bool is_whole = before.is_whole && whole_->num_allowed({&token, 1}) == 1;
      if (is_whole) whole_->accept({&token, 1});
      return {.state = state, .is_whole = is_whole};
    }
    Place place{.state = state, .is_whole = false};
    if (state == Thoughts::kBehind) place.num_behind = begin_answer(before.state, token);
    return place;
  }

  std::uint32_t begin_answer(ThoughtTokens::State before, std::int32_t token) {
    const auto answer = tokens_->answer_in(before, token);
    if (!answer) throw GrammarError("a token ends thoughts and begins an answer that cannot be spelled");
    behind().accept(*answer);
    return static_cast<std::uint32_t>(answer->size());
  }

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const ThoughtTokens> tokens_;
  const std::unique_ptr<GrammarMatcher> whole_;  // matcher of a text without thoughts, as long as it fits
  std::unique_ptr<GrammarMatcher> behind_;       // matcher of the answer after thoughts; made on demand
  std::vector<Place> places_;                    // the place of the empty text, then the place after each token
};

// No tokens are forced within free text, nor while the text may still be thoughts or an answer.
class ReasoningForcer final : public TokenForcer {
 public:
  ReasoningForcer(std::shared_ptr<const ThoughtTokens> tokens, std::unique_ptr<TokenForcer> answer)
      : tokens_(std::move(tokens)), answer_(std::move(answer)), state_(tokens_->thoughts().start()) {}

  void accept(std::span<const std::int32_t> tokens) override {
    for (const std::int32_t token : tokens) accept(token);
  }

  std::vector<std::int32_t> forced_tokens(int most) override {
    return tokens_->thoughts().is_answer(state_) ? answer_->forced_tokens(most) : std::vector<std::int32_t>();
  }

  int num_allowed(std::span<const std::int32_t> tokens) override {
    if (tokens_->thoughts().is_answer(state_)) return answer_->num_allowed(tokens);
    const std::size_t num_whole = num_allowed_without_thoughts(tokens);
    ThoughtTokens::State state = state_;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const ThoughtTokens::State next = tokens_->after(state, tokens[i]);
      if (next == Thoughts::kNone) return static_cast<int>(std::max(num_whole, i));
      if (next == Thoughts::kBehind) return static_cast<int>(i) + num_allowed_across(state, tokens.subspan(i));
      const bool fits_whole = tokens_->thoughts().is_undecided(state) && i < num_whole;
      if (!fits_whole && !may_come(state, next, tokens[i])) return static_cast<int>(i);
      state = next;
    }
    return static_cast<int>(tokens.size());
  }

 private:
  void accept(std::int32_t token) {
    if (tokens_->thoughts().is_answer(state_)) return answer_->accept({&token, 1});
    const ThoughtTokens::State before = std::exchange(state_, tokens_->after(state_, token));
    undecided_.push_back(token);
    if (tokens_->thoughts().is_undecided(state_)) return;
    if (state_ == Thoughts::kNone) answer_->accept(undecided_);
    if (state_ == Thoughts::kBehind) answer_->accept(tokens_->answer_in(before, token).value());
    undecided_.clear();
  }

  // How many tokens the grammar allows if the whole text is an answer; 0 once it cannot be one.
  std::size_t num_allowed_without_thoughts(std::span<const std::int32_t> tokens) {
    if (!tokens_->thoughts().is_undecided(state_)) return 0;
    std::vector<std::int32_t> text = undecided_;
    text.insert(text.end(), tokens.begin(), tokens.end());
    const auto num = static_cast<std::size_t>(answer_->num_allowed(text));
    return num - std::min(num, undecided_.size());
  }

  // How many of these tokens are allowed. The first of them ends the thoughts.
  int num_allowed_across(ThoughtTokens::State before, std::span<const std::int32_t> tokens) {
    std::optional<std::vector<std::int32_t>> answer = tokens_->answer_in(before, tokens.front());
    if (!answer) return 0;
    const int num_in_first = static_cast<int>(answer->size());
    answer->insert(answer->end(), tokens.begin() + 1, tokens.end());
    const int num = answer_->num_allowed(*answer);
    return num < num_in_first ? 0 : 1 + num - num_in_first;
  }

  // Whether a token that does not end thoughts may be part of them.
  bool may_come(ThoughtTokens::State before, ThoughtTokens::State behind, std::int32_t token) const {
    return tokens_->thoughts().is_undecided(before) ? before != behind : !tokens_->ends(token);
  }

  const std::shared_ptr<const ThoughtTokens> tokens_;
  const std::unique_ptr<TokenForcer> answer_;  // has the answer's tokens once it is known which they are
  ThoughtTokens::State state_;
  std::vector<std::int32_t> undecided_;  // tokens of an answer or of thoughts, not yet known which
};

class ReasoningGrammar final : public Grammar {
 public:
  ReasoningGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const ThoughtTokens> tokens)
      : grammar_(std::move(grammar)), tokens_(std::move(tokens)) {}

  std::unique_ptr<GrammarMatcher> start() const override {
    return std::make_unique<ReasoningMatcher>(grammar_, tokens_);
  }
  std::unique_ptr<TokenForcer> start_forcer() const override {
    std::unique_ptr<TokenForcer> answer = grammar_->start_forcer();
    return answer ? std::make_unique<ReasoningForcer>(tokens_, std::move(answer)) : nullptr;
  }

 private:
  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const ThoughtTokens> tokens_;
};

}  // namespace

std::shared_ptr<const Grammar> behind_thoughts(std::shared_ptr<const Grammar> grammar,
                                               std::shared_ptr<const ThoughtTokens> tokens) {
  return std::make_shared<ReasoningGrammar>(std::move(grammar), std::move(tokens));
}

}  // namespace tl::llguidance
