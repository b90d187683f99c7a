// Where a text's thoughts end and its answer begins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/word_matcher.h"

namespace tl {

// Reads a text, byte by byte, up to its answer. Thoughts stand at the text's beginning, behind a marker before which
// there is only white space, and go on up to the marker that ends them; a text without the first marker has none.
// Threads share it.
class Thoughts {
 public:
  using State = std::uint32_t;
  static constexpr State kNone = 0;    // there are no thoughts: all of the text is the answer
  static constexpr State kBehind = 1;  // thoughts have ended
  static constexpr std::string_view kSpace = " \t\n\r";

  // Any of `starts` begins the thoughts; without any, texts think from their first byte on. The thoughts end where one
  // text of the last of `ends` does, if texts of the others came before it, one behind the other and anything between
  // them. What ends them may begin within what starts them. No text is empty, and `ends` has one part at least.
  Thoughts(const std::vector<std::string>& starts, const std::vector<std::vector<std::string>>& ends);

  struct Step {
    State state;
    std::size_t num_read;  // of the bytes: less than all if they come to the answer
  };

  // The state of the empty text.
  State start() const { return before_.has_words() ? kFirst : first_part(); }
  // The state behind more bytes; `state` is none behind which the answer comes.
  Step after(State state, std::string_view bytes) const;

  bool is_answer(State state) const { return state <= kBehind; }
  // Whether the text may still turn out to have no thoughts.
  bool is_undecided(State state) const { return state >= kFirst && state < first_part(); }
  const std::vector<std::string>& starts() const { return starts_; }
  // What ends the thoughts, last.
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
  std::vector<State> behind_starts_;  // of each of `starts`
  std::vector<std::string> starts_, last_texts_;
};

}  // namespace tl
