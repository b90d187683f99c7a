// Where a text has white space, so that what is written next can be expected to look like what was written before.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tl {

constexpr bool is_space(char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

// Remembers the last gap between bytes of each pair of kinds: the marks of structured texts each are a kind of their
// own, all else is one. An indentation is remembered as how it differs from that of the line before.
class TextLayout {
 public:
  // Where in a text one is: as much of it as its gaps depend on.
  struct Place {
    char last = '\0';     // but for white space; NUL at the beginning
    std::string space;    // since then, up to kLongestGap + 1 of it
    int indentation = 0;  // of the line of `last`
    bool operator==(const Place&) const = default;
  };

  void append(std::string_view bytes);
  const Place& place() const { return place_; }

  // Moves `place` behind `bytes`; nothing is learned of them.
  static void advance(Place& place, std::string_view bytes);
  // What white space is expected at `place` before `next`, beyond what is there; none if that is not known or something
  // else is there already.
  std::optional<std::string> space_before(char next, const Place& place) const;

 private:
  static constexpr std::size_t kLongestGap = 64;
  static constexpr std::string_view kMarks = "{}[]:,\"";
  static constexpr std::size_t kNumKinds = kMarks.size() + 1;

  struct Gap {
    bool known = false;
    std::string text;     // up to the last line break, or all if there is none
    bool breaks = false;  // has a line break
    int indentation = 0;  // behind the line break, less that of the line before
  };

  static std::size_t kind_of(char byte);
  static Gap gap_at(const Place& place);
  static std::string written(const Gap& gap, const Place& place);
  Gap expected(char next, const Place& place) const;
  void learn(char next);

  Place place_;
  std::array<std::array<Gap, kNumKinds>, kNumKinds> between_;
  std::array<Gap, kNumKinds> behind_;  // of each kind, the last of its gaps
};

}  // namespace tl
