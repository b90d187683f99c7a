// What each token of a tokenizer adds to a text.
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
  kNone,      // they are text
  kAlphabet,  // by GPT-2's alphabet
  kFallback,  // they are text, but for those of the form <0xE4>
};

// In each token `pattern`, which is not empty, is replaced by `content`; in the first of a text by `content_of_first`.
struct TokenReplacement {
  std::string pattern, content, content_of_first;
};

// What a decoder of the tokenizers library does, in this order: it makes the replacements, finds the bytes, puts
// `separator` between tokens, and takes at most `max_stripped` times `stripped` off the start of the whole text.
struct DecoderRules {
  std::vector<TokenReplacement> replacements;
  ByteSpelling bytes = ByteSpelling::kNone;
  std::string separator;
  std::string stripped;
  int max_stripped = 0;
};

// Texts by token, or nothing for tokens that the vocabulary lacks. Threads share it.
class TokenBytes {
 public:
  static constexpr std::uint32_t kMaxTokenId = (1u << 24) - 1;
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 30;

  using Vocabulary = std::vector<std::pair<std::uint32_t, std::string_view>>;

  // Of tokens with the same id the last one counts. `special` are ids of special tokens. Throws EngineError if an id is
  // above kMaxTokenId or the texts have more than kMaxBytes.
  TokenBytes(const Vocabulary& vocabulary, std::span<const std::uint32_t> special, DecoderRules rules);

  const DecoderRules& rules() const { return rules_; }
  bool has(std::int32_t token) const { return (kind(token) & kKnown) != 0; }
  bool is_special(std::int32_t token) const { return (kind(token) & kSpecial) != 0; }
  // Whether the token stands for a byte by fallback; its text is that byte.
  bool is_byte(std::int32_t token) const { return (kind(token) & kByte) != 0; }
  // Of a token that `has`: bytes, with ByteSpelling::kAlphabet not always whole characters.
  std::string_view text(std::int32_t token) const { return later_.text(static_cast<std::size_t>(token)); }
  // The same, where no other token stands before it.
  std::string_view text_of_first(std::int32_t token) const {
    return (first_.starts.empty() ? later_ : first_).text(static_cast<std::size_t>(token));
  }

 private:
  enum Kind : std::uint8_t { kKnown = 1, kSpecial = 2, kByte = 4 };

  struct Texts {
    std::string bytes;
    std::vector<std::uint32_t> starts;  // by token, and one more

    std::string_view text(std::size_t token) const {
      return std::string_view(bytes).substr(starts[token], starts[token + 1] - starts[token]);
    }
  };

  std::uint8_t kind(std::int32_t token) const {
    const auto place = static_cast<std::size_t>(token);  // of a negative one beyond all
    return place < kinds_.size() ? kinds_[place] : std::uint8_t{0};
  }
  Texts texts(std::span<const std::string_view> tokens, bool first);

  DecoderRules rules_;
  std::vector<std::uint8_t> kinds_;
  Texts later_, first_;  // first_ is empty if there is no difference
};

}  // namespace tl
