// Learns where a text has white space, so that its continuation can be predicted in the same style.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tl {

constexpr bool is_space(char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

// Remembers the last gap between bytes of each pair of kinds: each punctuation mark of structured texts is a kind of
// its own, and all other bytes are one kind. An indentation is remembered as its difference from that of the line
// before.
class TextLayout {
 public:
  // A place in a text: as much of the text before it as gaps depend on.
  struct Place {
    char last = '\0';     // the last byte that is not white space; NUL at the beginning
    std::string space;    // white space since then, up to kLongestGap + 1 bytes
    int indentation = 0;  // indentation of the line of `last`
    bool operator==(const Place&) const = default;
  };

  void append(std::string_view bytes);
  const Place& place() const { return place_; }

  // Moves `place` past `bytes`, without learning from them.
  static void advance(Place& place, std::string_view bytes);
  // The additional white space expected at `place` before `next`. Empty if it is unknown, or if different white space
  // is there already.
  std::optional<std::string> space_before(char next, const Place& place) const;

 private:
  static constexpr std::size_t kLongestGap = 64;
  static constexpr std::string_view kMarks = "{}[]:,\"";
  static constexpr std::size_t kNumKinds = kMarks.size() + 1;

  struct Gap {
    bool known = false;
    std::string text;     // the gap up to its last line break; all of it if it has none
    bool breaks = false;  // whether it has a line break
    int indentation = 0;  // after the line break, relative to the line before
  };

  static std::size_t kind_of(char byte);
  static Gap gap_at(const Place& place);
  static std::string written(const Gap& gap, const Place& place);
  Gap expected(char next, const Place& place) const;
  void learn(char next);

  Place place_;
  std::array<std::array<Gap, kNumKinds>, kNumKinds> between_;
  std::array<Gap, kNumKinds> behind_;  // by kind: the last gap after a byte of that kind
};

}  // namespace tl
