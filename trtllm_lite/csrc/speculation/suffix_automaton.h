// A suffix automaton over texts of tokens, which counts what followed what (Blumer et al., "The smallest automaton
// recognizing the subwords of a text", 1985; of several texts as in Mohri et al., "General suffix automaton
// construction algorithm", 2009).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tl {

// A token takes amortised constant time and, at most, 2 states and 3 transitions: 136 bytes, and as much again while
// vectors grow.
class SuffixAutomaton {
 public:
  // A string that occurs in the texts: the `length` last tokens of any string of `state`. Length 0 matches nothing.
  struct Match {
    std::int32_t state = 0, length = 0;
  };
  struct Continuation {
    std::int32_t token;
    double share;  // of the times that the match was continued
  };
  // Counts are kept of a text's end and of so many of its suffixes, from the longest, that have followed other tokens
  // than the next longer one. More there are only in texts that repeat themselves again and again; that bounds the
  // time.
  static constexpr int kCounted = 32;

  SuffixAutomaton() : states_(1), index_(kLeastPlaces, kNone) { states_[0].link = kNone; }

  // What is appended next does not continue what was appended before.
  void begin_text() { last_ = 0; }
  void append(std::int32_t token);
  std::size_t num_tokens() const { return num_tokens_; }

  // The longest suffix of the only text that also occurs earlier in it.
  Match repeated() const;
  // The longest string that occurs and ends a text that ended with `match` and goes on with `token`.
  Match advance(Match match, std::int32_t token) const;
  // The most frequent continuation of the match, or, if nothing followed it, of its longest suffix that something
  // followed; of several the one that became so last. Moves the match behind it. None if the match comes to nothing.
  std::optional<Continuation> follow(Match& match) const;

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kLeastPlaces = 64;
  struct State {
    std::int32_t length = 0;     // of its longest string
    std::int32_t link = 0;       // the state of the longest suffix that occurs elsewhere, too
    std::int32_t first = kNone;  // of its transitions
    std::int32_t count = 0;      // occurrences
    std::int32_t num_continued = 0;
    std::int32_t best = 0, best_count = 0;  // the most frequent continuation
  };
  struct Transition {
    std::int32_t from, token, to, next;  // next: of the same state
  };

  State& state(std::int32_t index) { return states_[static_cast<std::size_t>(index)]; }
  const State& state(std::int32_t index) const { return states_[static_cast<std::size_t>(index)]; }
  std::size_t place(std::int32_t from, std::int32_t token) const;
  Transition* find(std::int32_t from, std::int32_t token);
  const Transition* find(std::int32_t from, std::int32_t token) const;
  void connect(std::int32_t from, std::int32_t token, std::int32_t to);
  void grow_index();
  std::int32_t extend(std::int32_t token);
  std::int32_t split(std::int32_t from, std::int32_t token, std::int32_t to);
  void count(std::int32_t before, std::int32_t after, std::int32_t token);
  void shorten(Match& match) const;

  std::vector<State> states_;
  std::vector<Transition> transitions_;
  std::vector<std::int32_t> index_;  // of transitions_, by state and token: a hash table with linear probing
  std::int32_t last_ = 0;            // the state of the whole text so far
  std::size_t num_tokens_ = 0;
};

}  // namespace tl
