#include "text/token_bytes.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "errors.h"
#include "text/byte_alphabet.h"

namespace tl {
namespace {

void append_replaced(std::string_view text, std::string_view pattern, std::string_view content, std::string& out) {
  while (true) {
    const std::size_t place = text.find(pattern);
    if (place == std::string_view::npos) break;
    out += text.substr(0, place);
    out += content;
    text.remove_prefix(place + pattern.size());
  }
  out += text;
}

// The byte that a token of the form <0xE4> stands for. Like the tokenizers library, accepts <0x+4> too.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  std::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);
  std::uint8_t byte = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return static_cast<char>(byte);
}

std::size_t num_ids(const TokenBytes::Vocabulary& vocabulary) {
  std::size_t num = 0;
  for (const auto& [id, token] : vocabulary) {
    if (id > TokenBytes::kMaxTokenId) {
      throw EngineError("the tokenizer has a token with the id " + std::to_string(id) + ", expected at most " +
                        std::to_string(TokenBytes::kMaxTokenId) + ": correct its tokenizer.json, then convert again");
    }
    num = std::max<std::size_t>(num, id + 1);
  }
  return num;
}

}  // namespace

TokenBytes::TokenBytes(const Vocabulary& vocabulary, std::span<const std::uint32_t> special, DecoderRules rules)
    : rules_(std::move(rules)), kinds_(num_ids(vocabulary)) {
  std::vector<std::string_view> tokens(kinds_.size());
  for (const auto& [id, token] : vocabulary) {
    tokens[id] = token;
    kinds_[id] = kKnown;
  }
  for (const std::uint32_t id : special) {
    if (id < kinds_.size()) kinds_[id] |= kSpecial;
  }
  later_ = texts(tokens, false);
  const bool first_differs = std::ranges::any_of(
      rules_.replacements, [](const TokenReplacement& one) { return one.content != one.content_of_first; });
  if (first_differs || !rules_.separator.empty()) first_ = texts(tokens, true);
}

TokenBytes::Texts TokenBytes::texts(std::span<const std::string_view> tokens, bool first) {
  Texts out;
  out.starts.reserve(tokens.size() + 1);
  out.starts.push_back(0);
  std::string text, replaced;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    std::string_view token = tokens[id];
    for (const TokenReplacement& one : rules_.replacements) {
      if (token.find(one.pattern) == std::string_view::npos) continue;
      replaced.clear();
      append_replaced(token, one.pattern, first ? one.content_of_first : one.content, replaced);
      text.swap(replaced);
      token = text;
    }
    if (!first && (kinds_[id] & kKnown) != 0) out.bytes += rules_.separator;
    const auto byte = rules_.bytes == ByteSpelling::kFallback ? byte_of(token) : std::nullopt;
    if (byte) {
      kinds_[id] |= kByte;
      out.bytes.push_back(*byte);
    } else if (rules_.bytes == ByteSpelling::kAlphabet) {
      append_spelled_bytes(token, out.bytes);
    } else {
      out.bytes += token;
    }
    if (out.bytes.size() > kMaxBytes) {
      throw EngineError("the texts of the tokenizer's tokens have more than " + std::to_string(kMaxBytes) +
                        " bytes: correct its tokenizer.json, then convert again");
    }
    out.starts.push_back(static_cast<std::uint32_t>(out.bytes.size()));
  }
  return out;
}

}  // namespace tl
