// Cuts a text where a stop word begins in its answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/stop_filter.h"
#include "text/thoughts.h"
#include "text/word_matcher.h"

namespace tl {

// Passes on a text's thoughts as they come, and its answer as StopFilter does. What may be either, at the text's
// beginning, is held back. Line ends between the two belong to neither.
class AnswerFilter {
 public:
  // Without `thoughts` all of the text is the answer.
  AnswerFilter(const WordMatcher& words, bool includes_word, std::shared_ptr<const Thoughts> thoughts);

  // See StopFilter.
  std::optional<int> match() const { return stops_.match(); }
  // Whether the thoughts, if there are any, have ended.
  bool is_in_answer() const { return !thoughts_ || thoughts_->is_answer(state_); }

  // Adds a piece; see StopFilter.
  void push(const std::string& piece, bool armed, std::string& out);
  // Adds the name of a special token, which is no part of the text, and no stop word has it.
  void push_unseen(std::string_view name, std::string& out);
  // The text has ended: appends what is still held back, up to a stop word in it.
  void finish(bool armed, std::string& out);

 private:
  void push_answer(std::string text, bool armed, std::string& out);

  StopFilter<std::string> stops_;
  std::shared_ptr<const Thoughts> thoughts_;
  Thoughts::State state_;
  bool is_between_ = true;  // no character of the answer has come, if it stands behind thoughts
  std::string undecided_;
};

}  // namespace tl
