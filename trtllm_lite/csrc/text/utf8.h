// Reads UTF-8 that may be invalid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tl {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Part : std::uint8_t { kCharacter, kUnfinished, kBroken };

struct Utf8Start {
  Utf8Part part;
  std::size_t num_bytes;
};

// What nonempty `bytes` begin with: a whole character; an unfinished character that takes all of them; or invalid
// bytes, as many as Unicode replaces by one U+FFFD ("maximal subpart", Unicode 15 section 3.9).
Utf8Start start_of(std::string_view bytes);

// Appends `character` as UTF-8; it must be at most U+10FFFF and no surrogate.
void append_utf8(std::uint32_t character, std::string& text);

// Removes and returns the first character of `text`, which must be valid UTF-8 and not empty.
std::uint32_t take_character(std::string_view& text);

}  // namespace tl
