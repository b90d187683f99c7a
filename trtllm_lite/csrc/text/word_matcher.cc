#include "text/word_matcher.h"

#include <algorithm>
#include <numeric>

namespace tl {

// Builds nodes breadth first over the sorted words. Words that begin with a node's symbols are neighbours, and a node's
// `shorter` is found through nodes of less depth, which are already complete.
WordMatcher::WordMatcher(const std::vector<std::vector<Symbol>>& words) {
  for (const std::vector<Symbol>& word : words) lengths_.push_back(word.size());
  std::vector<int> order(words.size());
  std::iota(order.begin(), order.end(), 0);
  const auto word = [&](std::size_t place) -> const std::vector<Symbol>& {
    return words[static_cast<std::size_t>(order[place])];
  };
  std::ranges::stable_sort(order, {}, [&](int number) { return words[static_cast<std::size_t>(number)]; });

  struct Range {
    std::size_t begin, end;  // range of the sorted words that begin with the node's symbols
  };
  nodes_.push_back({.symbol = 0, .depth = 0, .shorter = kStart, .found = kNone});
  std::vector<Range> ranges{{0, words.size()}};
  for (State state = 0; state < nodes_.size(); ++state) {
    const std::uint32_t depth = nodes_[state].depth;
    auto [begin, end] = ranges[state];
    while (begin < end && word(begin).size() == depth) ++begin;  // skips words that end here
    nodes_[state].first_child = static_cast<State>(nodes_.size());
    while (begin < end) {
      const Symbol symbol = word(begin)[depth];
      std::size_t next = begin;
      while (next < end && word(next)[depth] == symbol) ++next;
      const State shorter = state == kStart ? kStart : after(nodes_[state].shorter, symbol);
      const bool is_word = word(begin).size() == depth + 1;
      nodes_.push_back({.symbol = symbol,
                        .depth = depth + 1,
                        .shorter = shorter,
                        .found = is_word ? order[begin] : nodes_[shorter].found});
      ranges.push_back({begin, next});
      ++nodes_[state].num_children;
      begin = next;
    }
  }
}

WordMatcher WordMatcher::over_bytes(const std::vector<std::string>& words) {
  std::vector<std::vector<Symbol>> symbols;
  for (const std::string& word : words) {
    auto& its_symbols = symbols.emplace_back();
    for (const char byte : word) its_symbols.push_back(static_cast<std::uint8_t>(byte));
  }
  return WordMatcher(symbols);
}

WordMatcher::State WordMatcher::child(State state, Symbol symbol) const {
  const Node& node = nodes_[state];
  const auto first = nodes_.begin() + node.first_child, last = first + node.num_children;
  const auto found = std::ranges::lower_bound(first, last, symbol, {}, &Node::symbol);
  return found != last && found->symbol == symbol ? static_cast<State>(found - nodes_.begin()) : kStart;
}

WordMatcher::State WordMatcher::after(State state, Symbol symbol) const {
  while (true) {
    const State next = child(state, symbol);
    if (next != kStart || state == kStart) return next;
    state = nodes_[state].shorter;
  }
}

WordMatcher::State WordMatcher::unfinished(State state) const {
  while (nodes_[state].num_children == 0 && state != kStart) state = nodes_[state].shorter;
  return state;
}

}  // namespace tl
