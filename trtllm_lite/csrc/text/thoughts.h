// Finds where a text's thoughts end and its answer begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/word_matcher.h"

namespace tl {

// Reads a text byte by byte up to its answer. Thoughts are at the beginning of the text: after a start marker, with
// only white space before it, and up to an end marker. A text without the start marker has no thoughts. Threads share
// it.
class Thoughts {
 public:
  using State = std::uint32_t;
  static constexpr State kNone = 0;    // no thoughts: the whole text is the answer
  static constexpr State kBehind = 1;  // thoughts have ended
  static constexpr std::string_view kSpace = " \t\n\r";

  // Any of `starts` begins the thoughts; if `starts` is empty, every text begins with thoughts. The thoughts end with
  // one of the texts in the last part of `ends`, after one text of each earlier part has come in order, with anything
  // in between. The end may overlap the start. No text is empty, and `ends` has at least one part.
  Thoughts(const std::vector<std::string>& starts, const std::vector<std::vector<std::string>>& ends);

  struct Step {
    State state;
    std::size_t num_read;  // bytes read: fewer than given if the answer begins
  };

  // The state of the empty text.
  State start() const { return before_.has_words() ? kFirst : first_part(); }
  // The state after more bytes. `state` must not be one in which the answer has begun.
  Step after(State state, std::string_view bytes) const;

  bool is_answer(State state) const { return state <= kBehind; }
  // Whether the text may still turn out to have no thoughts.
  bool is_undecided(State state) const { return state >= kFirst && state < first_part(); }
  const std::vector<std::string>& starts() const { return starts_; }
  // The texts that end the thoughts: the last part of `ends`.
  const std::vector<std::string>& last_texts() const { return last_texts_; }

 private:
  static constexpr State kFirst = 2;

  State first_part() const { return kFirst + static_cast<State>(before_.num_states()); }
  State behind_start(std::string_view start) const;
  State after_undecided(State state, char byte) const;
  State after_thought(State state, char byte) const;

  struct Part {
    State first;
    WordMatcher words;
  };

  WordMatcher before_;
  std::vector<Part> parts_;
  std::vector<State> behind_starts_;  // the state after each of `starts`
  std::vector<std::string> starts_, last_texts_;
};

}  // namespace tl
