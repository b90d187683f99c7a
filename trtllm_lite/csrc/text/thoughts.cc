#include "text/thoughts.h"

#include <algorithm>

namespace tl {

Thoughts::Thoughts(const std::vector<std::string>& starts, const std::vector<std::vector<std::string>>& ends)
    : before_(WordMatcher::over_bytes(starts)), starts_(starts), last_texts_(ends.back()) {
  State first = first_part();
  for (const std::vector<std::string>& texts : ends) {
    parts_.push_back({first, WordMatcher::over_bytes(texts)});
    first += static_cast<State>(parts_.back().words.num_states());
  }
  for (const std::string& start : starts) behind_starts_.push_back(behind_start(start));
}

Thoughts::Step Thoughts::after(State state, std::string_view bytes) const {
  std::size_t num_read = 0;
  while (num_read < bytes.size() && !is_answer(state)) {
    const char byte = bytes[num_read++];
    state = is_undecided(state) ? after_undecided(state, byte) : after_thought(state, byte);
  }
  return {state, num_read};
}

Thoughts::State Thoughts::behind_start(std::string_view start) const {
  const Step step = after(first_part(), start);
  return is_answer(step.state) ? first_part() : step.state;
}

// The matcher also finds words that begin later: their depth is less than the length of the text.
Thoughts::State Thoughts::after_undecided(State state, char byte) const {
  const WordMatcher::State before = state - kFirst;
  if (before == WordMatcher::kStart && kSpace.find(byte) != std::string_view::npos) return state;
  const WordMatcher::State next = before_.after(before, static_cast<std::uint8_t>(byte));
  if (before_.depth(next) != before_.depth(before) + 1) return kNone;
  const int start = before_.found(next);
  const bool is_whole = start != WordMatcher::kNone && before_.length(start) == before_.depth(next);
  return is_whole ? behind_starts_[static_cast<std::size_t>(start)] : kFirst + next;
}

Thoughts::State Thoughts::after_thought(State state, char byte) const {
  const auto behind = std::ranges::upper_bound(parts_, state, {}, &Part::first);
  const Part& part = *std::prev(behind);
  const WordMatcher::State next = part.words.after(state - part.first, static_cast<std::uint8_t>(byte));
  if (part.words.found(next) == WordMatcher::kNone) return part.first + next;
  return behind == parts_.end() ? kBehind : behind->first;
}

}  // namespace tl
