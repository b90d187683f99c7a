#include "grammar/llguidance/token_texts.h"

namespace tl::llguidance {
namespace {

// The bytes of one token. The library writes up to `buffer.size()` of them and returns their number.
std::string_view decoded(const TokenizerHandle& tokenizer, std::uint32_t token, std::uint32_t flags,
                         std::string& buffer) {
  const auto decode = [&] {
    return tokenizer.api.decode(tokenizer.get(), &token, 1, buffer.data(), buffer.size(), flags);
  };
  std::size_t size = decode();
  if (size > buffer.size()) {
    buffer.resize(size);
    size = decode();
  }
  return std::string_view(buffer).substr(0, size - 1);  // without the NUL
}

}  // namespace

TokenTexts::TokenTexts(const TokenizerHandle& tokenizer, std::uint32_t vocab_size) {
  std::string buffer(256, '\0');
  for (std::uint32_t token = 0; token < vocab_size; ++token) {
    bytes_ += decoded(tokenizer, token, kWithSpecial, buffer);
    starts_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    is_special_.push_back(decoded(tokenizer, token, 0, buffer).empty());
  }
}

std::string TokenTexts::text(std::span<const std::int32_t> tokens) const {
  std::string written;
  for (const std::int32_t token : tokens) written += text(token);
  return written;
}

}  // namespace tl::llguidance
