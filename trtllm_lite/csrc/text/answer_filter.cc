#include "text/answer_filter.h"

#include <algorithm>
#include <utility>

namespace tl {

AnswerFilter::AnswerFilter(const WordMatcher& words, bool includes_word, std::shared_ptr<const Thoughts> thoughts)
    : stops_(words, includes_word),
      thoughts_(std::move(thoughts)),
      state_(thoughts_ ? thoughts_->start() : Thoughts::kNone) {}

void AnswerFilter::push(const std::string& piece, bool armed, std::string& out) {
  if (state_ == Thoughts::kNone || (state_ == Thoughts::kBehind && !is_between_)) {
    stops_.push(piece, armed, out);
    return;
  }
  if (state_ == Thoughts::kBehind) return push_answer(piece, armed, out);
  const Thoughts::Step step = thoughts_->after(state_, piece);
  state_ = step.state;
  undecided_ += piece;
  if (thoughts_->is_undecided(state_)) return;
  const std::string text = std::exchange(undecided_, {});
  const std::size_t num_thoughts = state_ == Thoughts::kNone ? 0 : text.size() - (piece.size() - step.num_read);
  out.append(text, 0, num_thoughts);
  if (thoughts_->is_answer(state_)) push_answer(text.substr(num_thoughts), armed, out);
}

// A special token that does not begin thoughts leaves open whether the text has any.
void AnswerFilter::push_unseen(std::string_view name, std::string& out) {
  if (is_in_answer()) return;
  const Thoughts::State state = thoughts_->after(state_, name).state;
  if (state == Thoughts::kNone) return;
  state_ = state;
  if (!thoughts_->is_undecided(state_)) out += std::exchange(undecided_, {});
}

void AnswerFilter::finish(bool armed, std::string& out) {
  stops_.push(std::exchange(undecided_, {}), armed, out);
  if (!match()) stops_.finish(out);
}

void AnswerFilter::push_answer(std::string text, bool armed, std::string& out) {
  if (state_ == Thoughts::kBehind) {
    const std::size_t num_between = std::min(text.find_first_not_of("\r\n"), text.size());
    out.append(text, 0, num_between);
    text.erase(0, num_between);
    is_between_ = text.empty();
  }
  stops_.push(text, armed, out);
}

}  // namespace tl
