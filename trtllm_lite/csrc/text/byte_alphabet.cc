#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace tl {
namespace {

// Printable Latin-1 characters stand for themselves, and characters from U+0100 on for the other bytes, in order.
constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::uint32_t kFirstOther = 0x100;
constexpr std::uint32_t kNumCharacters = kFirstOther + 68;
constexpr std::int16_t kNone = -1;

// The byte of each character, or kNone.
constexpr std::array<std::int16_t, kNumCharacters> kBytes = [] {
  std::array<std::int16_t, kNumCharacters> bytes{};
  bytes.fill(kNone);
  std::uint32_t other = kFirstOther;
  for (int byte = 0; byte < 0x100; ++byte) {
    bytes[stands_for_itself(byte) ? static_cast<std::uint32_t>(byte) : other++] = static_cast<std::int16_t>(byte);
  }
  return bytes;
}();

}  // namespace

void append_spelled_bytes(std::string_view token, std::string& bytes) {
  const std::size_t begin = bytes.size();
  for (std::string_view rest = token; !rest.empty();) {
    const std::uint32_t character = take_character(rest);
    const std::int16_t byte = character < kNumCharacters ? kBytes[character] : kNone;
    if (byte == kNone) {
      bytes.resize(begin);
      bytes += token;
      return;
    }
    bytes.push_back(static_cast<char>(byte));
  }
}

}  // namespace tl
