#include "grammar/reasoning.h"

#include <algorithm>
#include <span>
#include <utility>

namespace tl::llguidance {
namespace {

// Finds texts one behind the other in a text that grows (Knuth, Morris and Pratt): a state is how much of all of them
// is found or, of the one that is looked for, ends the text.
class Marker {
 public:
  using State = std::uint32_t;

  Marker(std::span<const std::string> parts, std::shared_ptr<const TokenTexts> texts,
         std::vector<std::uint32_t> end_ids)
      : texts_(std::move(texts)), end_ids_(std::move(end_ids)) {
    for (const std::string& part : parts) {
      begins_.resize(begins_.size() + part.size(), static_cast<State>(marker_.size()));
      marker_ += part;
    }
    shorter_ = begins_;
    for (State i = 1; i < marker_.size(); ++i) {
      if (begins_[i] + 1 < i) shorter_[i] = extended(shorter_[i - 1], marker_[i - 1], begins_[i]);
    }
  }

  bool is_found(State state) const { return state == marker_.size(); }
  State behind(State state, std::int32_t token) const {
    for (const char byte : texts_->with_name(token)) {
      state = extended(state, byte, begins_[state]);
      if (is_found(state)) break;
    }
    return state;
  }
  const std::vector<std::uint32_t>& end_ids() const { return end_ids_; }
  bool ends(std::int32_t token) const { return std::ranges::count(end_ids_, static_cast<std::uint32_t>(token)) > 0; }

 private:
  // The state behind one more byte, of the part that begins at `begin`.
  State extended(State state, char byte, State begin) const {
    while (state > begin && byte != marker_[state]) state = shorter_[state];
    return byte == marker_[state] ? state + 1 : state;
  }

  std::string marker_;          // all parts
  std::vector<State> begins_;   // of each byte, where its part begins
  std::vector<State> shorter_;  // of a state, the next shorter beginning of its part that ends the text
  const std::shared_ptr<const TokenTexts> texts_;
  const std::vector<std::uint32_t> end_ids_;
};

class ReasoningMatcher final : public GrammarMatcher {
 public:
  ReasoningMatcher(std::shared_ptr<const Marker> marker, std::unique_ptr<GrammarMatcher> behind)
      : marker_(std::move(marker)), behind_(std::move(behind)) {}

  void fill_mask(std::span<std::uint32_t> mask) override {
    if (marker_->is_found(states_.back())) return behind_->fill_mask(mask);
    std::ranges::fill(mask, ~std::uint32_t{0});
    for (const std::uint32_t token : marker_->end_ids()) mask[token / 32] &= ~(std::uint32_t{1} << (token % 32));
  }

  void accept(std::span<const std::int32_t> tokens) override {
    while (!tokens.empty() && !marker_->is_found(states_.back())) {
      states_.push_back(marker_->behind(states_.back(), tokens.front()));
      tokens = tokens.subspan(1);
    }
    behind_->accept(tokens);
    num_behind_ += tokens.size();
  }

  void roll_back(std::size_t count) override {
    const std::size_t from_behind = std::min(count, num_behind_);
    behind_->roll_back(from_behind);
    num_behind_ -= from_behind;
    if (count - from_behind >= states_.size()) throw GrammarError("more tokens are taken back than there are");
    states_.resize(states_.size() - (count - from_behind));
  }

 private:
  const std::shared_ptr<const Marker> marker_;
  const std::unique_ptr<GrammarMatcher> behind_;
  std::vector<Marker::State> states_{0};  // before each free token, and behind the last
  std::size_t num_behind_ = 0;            // tokens under the grammar
};

// Of a free text nothing is known.
class ReasoningGuesser final : public GrammarGuesser {
 public:
  ReasoningGuesser(std::shared_ptr<const Marker> marker, std::unique_ptr<GrammarGuesser> behind)
      : marker_(std::move(marker)), behind_(std::move(behind)) {}

  void accept(std::span<const std::int32_t> tokens) override {
    while (!tokens.empty() && !marker_->is_found(state_)) {
      state_ = marker_->behind(state_, tokens.front());
      tokens = tokens.subspan(1);
    }
    behind_->accept(tokens);
  }
  std::vector<std::int32_t> guess(int most) override {
    return marker_->is_found(state_) ? behind_->guess(most) : std::vector<std::int32_t>();
  }
  int num_allowed(std::span<const std::int32_t> tokens) override {
    Marker::State state = state_;
    std::size_t num_free = 0;
    for (; num_free < tokens.size() && !marker_->is_found(state); ++num_free) {
      if (marker_->ends(tokens[num_free])) return static_cast<int>(num_free);
      state = marker_->behind(state, tokens[num_free]);
    }
    return static_cast<int>(num_free) + behind_->num_allowed(tokens.subspan(num_free));
  }

 private:
  const std::shared_ptr<const Marker> marker_;
  const std::unique_ptr<GrammarGuesser> behind_;
  Marker::State state_ = 0;
};

class ReasoningGrammar final : public Grammar {
 public:
  ReasoningGrammar(std::shared_ptr<const Grammar> behind, std::shared_ptr<const Marker> marker)
      : behind_(std::move(behind)), marker_(std::move(marker)) {}

  std::unique_ptr<GrammarMatcher> start() const override {
    return std::make_unique<ReasoningMatcher>(marker_, behind_->start());
  }
  std::unique_ptr<GrammarGuesser> start_guesser() const override {
    std::unique_ptr<GrammarGuesser> behind = behind_->start_guesser();
    return behind ? std::make_unique<ReasoningGuesser>(marker_, std::move(behind)) : nullptr;
  }

 private:
  const std::shared_ptr<const Grammar> behind_;
  const std::shared_ptr<const Marker> marker_;
};

}  // namespace

std::shared_ptr<const Grammar> behind_marker(std::shared_ptr<const Grammar> grammar,
                                             std::span<const std::string> marker,
                                             std::shared_ptr<const TokenTexts> texts,
                                             std::vector<std::uint32_t> end_ids) {
  return std::make_shared<ReasoningGrammar>(
      std::move(grammar), std::make_shared<const Marker>(marker, std::move(texts), std::move(end_ids)));
}

}  // namespace tl::llguidance
