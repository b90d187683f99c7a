// Ends a text where a stop word begins in its answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/stop_filter.h"
#include "text/thoughts.h"
#include "text/word_matcher.h"

namespace tl {

// Passes a text's thoughts on as they come, and its answer as StopFilter does. The beginning of the text is held back
// until it is known to be one or the other. Line ends between the two belong to neither.
class AnswerFilter {
 public:
  // Without `thoughts` the whole text is the answer.
  AnswerFilter(const WordMatcher& words, bool includes_word, std::shared_ptr<const Thoughts> thoughts);

  // See StopFilter.
  std::optional<int> match() const { return stops_.match(); }
  // Whether the thoughts, if there are any, have ended.
  bool is_in_answer() const { return !thoughts_ || thoughts_->is_answer(state_); }

  // Adds a piece; see StopFilter.
  void push(const std::string& piece, bool armed, std::string& out);
  // Adds the name of a special token, which is part of neither the text nor any stop word.
  void push_unseen(std::string_view name, std::string& out);
  // Called at the end of the text: appends what is still held back, up to a stop word in it.
  void finish(bool armed, std::string& out);

 private:
  void push_answer(std::string text, bool armed, std::string& out);

  StopFilter<std::string> stops_;
  std::shared_ptr<const Thoughts> thoughts_;
  Thoughts::State state_;
  bool is_between_ = true;  // whether an answer that follows thoughts has no character yet
  std::string undecided_;
};

}  // namespace tl
