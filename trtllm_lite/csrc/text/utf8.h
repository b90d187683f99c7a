// Reads UTF-8 that may be broken.
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

// What `bytes`, which are not empty, begin with: a whole character; all of them the beginning of one; or bytes that no
// character begins with, as many as Unicode replaces by one U+FFFD ("maximal subpart", Unicode 15 section 3.9).
Utf8Start start_of(std::string_view bytes);

// Adds `character` as UTF-8; it is at most U+10FFFF and no surrogate.
void append_utf8(std::uint32_t character, std::string& text);

// Takes the first character off `text`, which is valid UTF-8 and not empty.
std::uint32_t take_character(std::string_view& text);

}  // namespace tl
