#include "text/utf8.h"

#include <algorithm>

namespace tl {
namespace {

// The length of a character that begins with the byte `first`, 0 if there is none; and the range of its second byte,
// which excludes overlong forms, surrogates and code points beyond U+10FFFF (Unicode 15, table 3-7).
struct Lead {
  std::size_t num_bytes;
  std::uint8_t low = 0x80, high = 0xBF;
};

Lead lead_of(std::uint8_t first) {
  if (first < 0x80) return {1};
  if (first < 0xC2 || first > 0xF4) return {0};
  if (first < 0xE0) return {2};
  if (first == 0xE0) return {3, 0xA0, 0xBF};
  if (first == 0xED) return {3, 0x80, 0x9F};
  if (first < 0xF0) return {3};
  if (first == 0xF0) return {4, 0x90, 0xBF};
  if (first == 0xF4) return {4, 0x80, 0x8F};
  return {4};
}

}  // namespace

Utf8Start start_of(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<std::uint8_t>(bytes[0]));
  if (lead.num_bytes == 0) return {Utf8Part::kBroken, 1};
  for (std::size_t i = 1; i < lead.num_bytes; ++i) {
    if (i == bytes.size()) return {Utf8Part::kUnfinished, i};
    const auto byte = static_cast<std::uint8_t>(bytes[i]);
    const bool fits = i == 1 ? lead.low <= byte && byte <= lead.high : byte >> 6 == 2;
    if (!fits) return {Utf8Part::kBroken, i};
  }
  return {Utf8Part::kCharacter, lead.num_bytes};
}

void append_utf8(std::uint32_t character, std::string& text) {
  const auto continuation = [&](int shift) { text.push_back(static_cast<char>(0x80 | ((character >> shift) & 0x3F))); };
  if (character < 0x80) {
    text.push_back(static_cast<char>(character));
  } else if (character < 0x800) {
    text.push_back(static_cast<char>(0xC0 | (character >> 6)));
    continuation(0);
  } else if (character < 0x10000) {
    text.push_back(static_cast<char>(0xE0 | (character >> 12)));
    continuation(6);
    continuation(0);
  } else {
    text.push_back(static_cast<char>(0xF0 | (character >> 18)));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

std::uint32_t take_character(std::string_view& text) {
  const auto first = static_cast<std::uint8_t>(text[0]);
  const std::size_t num_bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  std::uint32_t character = num_bytes == 1 ? first : first & (0x7Fu >> num_bytes);
  for (std::size_t i = 1; i < num_bytes && i < text.size(); ++i) {
    character = (character << 6) | (static_cast<std::uint8_t>(text[i]) & 0x3Fu);
  }
  text.remove_prefix(std::min(num_bytes, text.size()));
  return character;
}

}  // namespace tl
