#include "grammar/layout.h"

#include <algorithm>

namespace tl {

std::size_t TextLayout::kind_of(char byte) { return std::min(kMarks.find(byte), kMarks.size()); }

void TextLayout::append(std::string_view bytes) {
  for (const char byte : bytes) {
    if (!is_space(byte)) learn(byte);
    advance(place_, std::string_view(&byte, 1));
  }
}

void TextLayout::advance(Place& place, std::string_view bytes) {
  for (const char byte : bytes) {
    if (is_space(byte)) {
      if (place.space.size() <= kLongestGap) place.space.push_back(byte);
      continue;
    }
    const std::size_t line = place.space.rfind('\n');
    if (line != std::string::npos) place.indentation = static_cast<int>(place.space.size() - line - 1);
    place.space.clear();
    place.last = byte;
  }
}

TextLayout::Gap TextLayout::gap_at(const Place& place) {
  const std::size_t line = place.space.rfind('\n');
  if (place.space.size() > kLongestGap) return {};
  if (line == std::string::npos) return {.known = true, .text = place.space};
  return {.known = true,
          .text = place.space.substr(0, line + 1),
          .breaks = true,
          .indentation = static_cast<int>(place.space.size() - line - 1) - place.indentation};
}

void TextLayout::learn(char next) {
  if (place_.last == '\0') return;
  const std::size_t from = kind_of(place_.last);
  const Gap gap = gap_at(place_);
  between_[from][kind_of(next)] = gap;
  behind_[from] = gap;
}

std::string TextLayout::written(const Gap& gap, const Place& place) {
  if (!gap.breaks) return gap.text;
  return gap.text + std::string(static_cast<std::size_t>(std::max(place.indentation + gap.indentation, 0)), ' ');
}

// The gap for a pair that has not occurred yet: a list closes as it opened, and punctuation is spaced as in prose.
TextLayout::Gap TextLayout::expected(char next, const Place& place) const {
  const std::size_t from = kind_of(place.last);
  if (const Gap& seen = between_[from][kind_of(next)]; seen.known) return seen;
  if (next == ':' || (next == ',' && kMarks.find(place.last) > kMarks.find(','))) return {.known = true, .text = {}};
  if (next == '}' || next == ']') {
    Gap gap = behind_[kind_of(next == '}' ? '{' : '[')];
    gap.indentation = -gap.indentation;
    return gap;
  }
  if (place.last == ':') return {.known = true, .text = " "};
  if (place.last == '"' || from == kMarks.size()) return {};
  return behind_[from];
}

std::optional<std::string> TextLayout::space_before(char next, const Place& place) const {
  if (place.last == '\0') return std::string();
  const Gap gap = expected(next, place);
  if (!gap.known) return std::nullopt;
  const std::string all = written(gap, place);
  if (!all.starts_with(place.space)) return std::nullopt;
  return all.substr(place.space.size());
}

}  // namespace tl
