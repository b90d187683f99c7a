// Finds any of several words in a stream, in time independent of their number and lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tl {

// The automaton of Aho and Corasick (Efficient string matching, 1975) over bytes or token ids. A state stands for the
// longest suffix of the stream that is a prefix of a word; kStart means that it is empty.
class WordMatcher {
 public:
  using State = std::uint32_t;
  using Symbol = std::int32_t;

  static constexpr State kStart = 0;
  static constexpr int kNone = -1;

  explicit WordMatcher(const std::vector<std::vector<Symbol>>& words);
  static WordMatcher over_bytes(const std::vector<std::string>& words);

  std::size_t num_states() const { return nodes_.size(); }  // states are numbered from kStart on
  bool has_words() const { return nodes_.size() > 1; }
  // The state after `symbol`. On average over a stream, it searches the children of at most two states.
  State after(State state, Symbol symbol) const;
  // The number of the longest word that is a suffix of the stream, or kNone.
  int found(State state) const { return nodes_[state].found; }
  std::size_t length(int word) const { return lengths_[static_cast<std::size_t>(word)]; }
  // The length of the suffix that `state` stands for.
  std::uint32_t depth(State state) const { return nodes_[state].depth; }
  // The state for the longest suffix that may still become a word: `state`, or a shorter one if `state` is a whole word
  // that no longer word continues.
  State unfinished(State state) const;

 private:
  struct Node {
    Symbol symbol;  // the symbol that leads to this node
    std::uint32_t depth;
    State shorter;  // the next shorter suffix that is a prefix of a word
    int found;
    State first_child = 0;  // children are contiguous, in the order of their symbols
    std::uint32_t num_children = 0;
  };

  State child(State state, Symbol symbol) const;  // kStart if there is none

  std::vector<Node> nodes_;
  std::vector<std::size_t> lengths_;  // by word
};

}  // namespace tl
