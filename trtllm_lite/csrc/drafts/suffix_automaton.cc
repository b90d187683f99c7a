#include "drafts/suffix_automaton.h"

#include <utility>

namespace tl {

void SuffixAutomaton::append(std::int32_t token) {
  const std::int32_t before = std::exchange(last_, extend(token));
  ++num_tokens_;
  count(before, last_, token);
}

SuffixAutomaton::Match SuffixAutomaton::repeated() const {
  const std::int32_t link = state(last_).link;
  return link == kNone ? Match{} : Match{link, state(link).length};
}

SuffixAutomaton::Match SuffixAutomaton::advance(Match match, std::int32_t token) const {
  shorten(match);
  for (;; match = {state(match.state).link, 0}, match.length = state(match.state).length) {
    if (const Transition* transition = find(match.state, token)) return {transition->to, match.length + 1};
    if (match.state == 0) return {};
  }
}

std::optional<SuffixAutomaton::Continuation> SuffixAutomaton::follow(Match& match) const {
  shorten(match);
  while (match.state != 0 && state(match.state).num_continued == 0) {
    match.state = state(match.state).link;
    match.length = state(match.state).length;
  }
  if (match.state == 0) return std::nullopt;
  const State& from = state(match.state);
  match = {find(match.state, from.best)->to, match.length + 1};
  return Continuation{from.best, static_cast<double>(from.best_count) / from.num_continued};
}

// Moves the match to the state that has its string now: a split of the state moves its shorter strings to its link.
void SuffixAutomaton::shorten(Match& match) const {
  while (match.state != 0 && match.length <= state(state(match.state).link).length) {
    match.state = state(match.state).link;
  }
}

// Makes the state for the text followed by `token`.
std::int32_t SuffixAutomaton::extend(std::int32_t token) {
  if (const Transition* known = find(last_, token)) {  // from an earlier text
    return state(known->to).length == state(last_).length + 1 ? known->to : split(last_, token, known->to);
  }
  const auto longest = static_cast<std::int32_t>(states_.size());
  states_.push_back({.length = state(last_).length + 1});
  std::int32_t from = last_;
  for (; from != kNone; from = state(from).link) {
    if (const Transition* known = find(from, token)) {
      const std::int32_t to = known->to;
      const std::int32_t link = state(to).length == state(from).length + 1 ? to : split(from, token, to);
      state(longest).link = link;
      return longest;
    }
    connect(from, token, longest);
  }
  return longest;
}

// Moves the strings of `to` that are no longer than those of `from` plus `token` to a new state.
std::int32_t SuffixAutomaton::split(std::int32_t from, std::int32_t token, std::int32_t to) {
  const auto shorter = static_cast<std::int32_t>(states_.size());
  State copy = state(to);
  copy.length = state(from).length + 1;
  copy.first = kNone;
  states_.push_back(copy);
  for (std::int32_t i = state(to).first; i != kNone; i = transitions_[static_cast<std::size_t>(i)].next) {
    const Transition transition = transitions_[static_cast<std::size_t>(i)];
    connect(shorter, transition.token, transition.to);
  }
  state(to).link = shorter;
  for (; from != kNone; from = state(from).link) {
    Transition* transition = find(from, token);
    if (transition == nullptr || transition->to != to) break;
    transition->to = shorter;
  }
  return shorter;
}

// Counts that `token` followed the text of state `before` and its suffixes; `after` is the resulting state.
void SuffixAutomaton::count(std::int32_t before, std::int32_t after, std::int32_t token) {
  std::int32_t to = after;
  for (int i = 0; i < kCounted && to != 0; ++i, to = state(to).link) ++state(to).count;
  to = after;
  for (int i = 0; i < kCounted && before != 0; ++i, before = state(before).link) {
    State& from = state(before);
    while (state(state(to).link).length > from.length) to = state(to).link;
    ++from.num_continued;
    if (state(to).count >= from.best_count) from.best = token, from.best_count = state(to).count;
  }
}

std::size_t SuffixAutomaton::place(std::int32_t from, std::int32_t token) const {
  std::uint64_t hash =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(from)) << 32 | static_cast<std::uint32_t>(token)) *
      0x9e3779b97f4a7c15ull;
  hash = (hash ^ (hash >> 32)) * 0xff51afd7ed558ccdull;
  const std::size_t mask = index_.size() - 1;
  for (std::size_t at = (hash >> 32) & mask;; at = (at + 1) & mask) {
    if (index_[at] == kNone) return at;
    const Transition& found = transitions_[static_cast<std::size_t>(index_[at])];
    if (found.from == from && found.token == token) return at;
  }
}

const SuffixAutomaton::Transition* SuffixAutomaton::find(std::int32_t from, std::int32_t token) const {
  const std::int32_t at = index_[place(from, token)];
  return at == kNone ? nullptr : &transitions_[static_cast<std::size_t>(at)];
}

SuffixAutomaton::Transition* SuffixAutomaton::find(std::int32_t from, std::int32_t token) {
  return const_cast<Transition*>(std::as_const(*this).find(from, token));
}

void SuffixAutomaton::connect(std::int32_t from, std::int32_t token, std::int32_t to) {
  if (2 * (transitions_.size() + 1) > index_.size()) grow_index();
  index_[place(from, token)] = static_cast<std::int32_t>(transitions_.size());
  transitions_.push_back(
      {from, token, to, std::exchange(state(from).first, static_cast<std::int32_t>(transitions_.size()))});
}

void SuffixAutomaton::grow_index() {
  index_.assign(2 * index_.size(), kNone);
  for (std::size_t i = 0; i < transitions_.size(); ++i) {
    index_[place(transitions_[i].from, transitions_[i].token)] = static_cast<std::int32_t>(i);
  }
}

}  // namespace tl
