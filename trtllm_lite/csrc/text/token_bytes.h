// The text that each token of a tokenizer adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tl {

// How the tokens of a vocabulary spell bytes.
enum class ByteSpelling : std::uint8_t {
  kNone,      // tokens are text
  kAlphabet,  // in GPT-2's alphabet
  kFallback,  // as text, except for tokens of the form <0xE4>
};

// Replaces `pattern`, which is not empty, in each token by `content`, or by `content_of_first` in the first token of a
// text.
struct TokenReplacement {
  std::string pattern, content, content_of_first;
};

// The steps of a decoder of the tokenizers library, in this order: make the replacements, convert to bytes, put
// `separator` between tokens, and remove `stripped` up to `max_stripped` times from the start of the whole text.
struct DecoderRules {
  std::vector<TokenReplacement> replacements;
  ByteSpelling bytes = ByteSpelling::kNone;
  std::string separator;
  std::string stripped;
  int max_stripped = 0;
};

// The texts of tokens; tokens that the vocabulary lacks have none. Threads share it.
class TokenBytes {
 public:
  static constexpr std::uint32_t kMaxTokenId = (1u << 24) - 1;
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

  using Vocabulary = std::vector<std::pair<std::uint32_t, std::string_view>>;

  // If several tokens have the same id, the last counts. `special`: ids of special tokens. Throws EngineError if an id
  // is above kMaxTokenId or the texts exceed kMaxBytes.
  TokenBytes(const Vocabulary& vocabulary, std::span<const std::uint32_t> special, DecoderRules rules);

  const DecoderRules& rules() const { return rules_; }
  bool has(std::int32_t token) const { return (kind(token) & kKnown) != 0; }
  bool is_special(std::int32_t token) const { return (kind(token) & kSpecial) != 0; }
  // Whether the token stands for a single byte (byte fallback), which is its text.
  bool is_byte(std::int32_t token) const { return (kind(token) & kByte) != 0; }
  // The bytes of a token for which has() is true. With ByteSpelling::kAlphabet they may not be whole characters.
  std::string_view text(std::int32_t token) const { return later_.text(static_cast<std::size_t>(token)); }
  // The bytes of a token that is the first of a text.
  std::string_view text_of_first(std::int32_t token) const {
    return (first_.starts.empty() ? later_ : first_).text(static_cast<std::size_t>(token));
  }

 private:
  enum Kind : std::uint8_t { kKnown = 1, kSpecial = 2, kByte = 4 };

  struct Texts {
    std::string bytes;
    std::vector<std::uint32_t> starts;  // by token, plus one

    std::string_view text(std::size_t token) const {
      return std::string_view(bytes).substr(starts[token], starts[token + 1] - starts[token]);
    }
  };

  std::uint8_t kind(std::int32_t token) const {
    const auto place = static_cast<std::size_t>(token);  // a negative token becomes a place beyond all
    return place < kinds_.size() ? kinds_[place] : std::uint8_t{0};
  }
  Texts texts(std::span<const std::string_view> tokens, bool first);

  DecoderRules rules_;
  std::vector<std::uint8_t> kinds_;
  Texts later_, first_;  // first_ is empty if it would be equal
};

}  // namespace tl
