// A suffix automaton over texts of tokens that counts which tokens followed which strings (Blumer et al., "The
// smallest automaton recognizing the subwords of a text", 1985; for several texts as in Mohri et al., "General suffix
// automaton construction algorithm", 2009).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tl {

// A token takes amortized constant time and at most 2 states and 3 transitions: 136 bytes, and as much again while
// vectors grow.
class SuffixAutomaton {
 public:
  // A string that occurs in the texts: the last `length` tokens of any string of `state`. Length 0 matches nothing.
  struct Match {
    std::int32_t state = 0, length = 0;
  };
  struct Continuation {
    std::int32_t token;
    double share;  // share of this token among the match's continuations
  };
  // Continuations are counted for a text's end and, from the longest on, for up to this many of its suffixes that have
  // had other continuations than the next longer one. Only very repetitive texts have more; the limit bounds the time.
  static constexpr int kCounted = 32;

  SuffixAutomaton() : states_(1), index_(kLeastPlaces, kNone) { states_[0].link = kNone; }

  // Starts a new text, which does not continue the one before.
  void begin_text() { last_ = 0; }
  void append(std::int32_t token);
  std::size_t num_tokens() const { return num_tokens_; }

  // The longest suffix of the text that also occurs earlier in it. The automaton must hold this text alone.
  Match repeated() const;
  // The longest known string that ends a text which ended with `match` and continues with `token`.
  Match advance(Match match, std::int32_t token) const;
  // The most frequent continuation of the match or, if it has none, of its longest suffix that has one; the latest of
  // equally frequent ones. Advances the match. Empty if there is no continuation.
  std::optional<Continuation> follow(Match& match) const;

 private:
  static constexpr std::int32_t kNone = -1;
  static constexpr std::size_t kLeastPlaces = 64;
  struct State {
    std::int32_t length = 0;     // length of its longest string
    std::int32_t link = 0;       // the state of the longest suffix that also occurs elsewhere
    std::int32_t first = kNone;  // index of its first transition
    std::int32_t count = 0;      // occurrences
    std::int32_t num_continued = 0;
    std::int32_t best = 0, best_count = 0;  // the most frequent continuation
  };
  struct Transition {
    std::int32_t from, token, to, next;  // next: the next transition of the same state
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
  std::vector<std::int32_t> index_;  // transitions_ by state and token: a hash table with linear probing
  std::int32_t last_ = 0;            // the state of the whole text so far
  std::size_t num_tokens_ = 0;
};

}  // namespace tl
