#include "grammar/llguidance/byte_text.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace tl::llguidance {
namespace {

// The vocabulary: a token for each byte that occurs in UTF-8, with its value as the number, and an end token. 0xff
// begins the names of special tokens.
constexpr std::uint32_t kEnd = 0xff;
constexpr std::uint32_t kVocabSize = 256;
constexpr std::string_view kEndName = "\xff<end>";
constexpr std::size_t kMostForcedBytes = 128;

using Mask = std::array<std::uint32_t, kVocabSize / 32>;

std::size_t tokenize(const void*, const std::uint8_t* bytes, std::size_t num_bytes, std::uint32_t* tokens,
                     std::size_t num_tokens) {
  std::copy_n(bytes, std::min(num_bytes, num_tokens), tokens);
  return num_bytes;
}

std::vector<std::uint32_t> tokens_of(std::string_view bytes) {
  std::vector<std::uint32_t> tokens(bytes.size());
  std::ranges::transform(bytes, tokens.begin(), [](char byte) { return static_cast<std::uint8_t>(byte); });
  return tokens;
}

}  // namespace

std::shared_ptr<const TokenizerHandle> ByteText::tokenizer(const Functions& functions) {
  std::array<std::uint32_t, kVocabSize> lengths;
  std::string bytes;
  for (std::uint32_t byte = 0; byte < kEnd; ++byte) {
    lengths[byte] = 1;
    bytes.push_back(static_cast<char>(byte));
  }
  lengths[kEnd] = kEndName.size();
  bytes += kEndName;
  return std::make_shared<TokenizerHandle>(
      functions, TokenizerInit{.struct_size = sizeof(TokenizerInit),
                               .vocab_size = kVocabSize,
                               .end_id = kEnd,
                               .token_lengths = lengths.data(),
                               .token_bytes = reinterpret_cast<const std::uint8_t*>(bytes.data()),
                               .tokenizer_json = nullptr,
                               .tokenize_takes_strings = false,
                               .tokenize = tokenize,
                               .tokenize_greedily = false,
                               .tokenize_user_data = nullptr,
                               .slices = nullptr,
                               .more_end_ids = nullptr,
                               .num_more_end_ids = 0});
}

void ByteText::append(std::string_view bytes) {
  const std::vector<std::uint32_t> tokens = tokens_of(bytes);
  handle_.checked(handle_.api().consume(handle_.get(), tokens.data(), tokens.size()));
}

void ByteText::take_back(std::size_t num_bytes) { handle_.checked(handle_.api().roll_back(handle_.get(), num_bytes)); }

std::size_t ByteText::num_allowed(std::string_view bytes) {
  const std::vector<std::uint32_t> tokens = tokens_of(bytes);
  return static_cast<std::size_t>(
      handle_.checked(handle_.api().num_valid(handle_.get(), tokens.data(), tokens.size())));
}

bool ByteText::may_end() { return handle_.api().is_accepting(handle_.get()); }

std::string ByteText::forced() {
  std::array<std::uint32_t, kMostForcedBytes> tokens;
  const auto num = handle_.checked(handle_.api().forced(handle_.get(), tokens.data(), tokens.size()));
  std::string bytes;
  for (std::int32_t i = 0; i < num && tokens[static_cast<std::size_t>(i)] != kEnd; ++i) {
    bytes.push_back(static_cast<char>(tokens[static_cast<std::size_t>(i)]));
  }
  return bytes;
}

// Asks first whether a line break is allowed. It is allowed where any white space is, and rarely elsewhere, so a mask
// is seldom needed.
std::optional<char> ByteText::forced_but_for_space() {
  if (num_allowed("\n") == 0) return std::nullopt;
  Mask mask{};
  handle_.checked(handle_.api().compute_mask(handle_.get(), mask.data(), sizeof(mask)));
  for (const char space : {' ', '\t', '\n', '\r'}) {
    const auto byte = static_cast<std::uint8_t>(space);
    mask[byte / 32] &= ~(1u << (byte % 32));
  }
  int num_others = 0;
  for (const std::uint32_t word : mask) num_others += std::popcount(word);
  if (num_others != 1) return std::nullopt;
  const auto word = std::ranges::find_if(mask, [](std::uint32_t bits) { return bits != 0; });
  const auto byte = static_cast<std::uint32_t>(32 * (word - mask.begin()) + std::countr_zero(*word));
  return byte == kEnd ? std::nullopt : std::optional(static_cast<char>(byte));
}

}  // namespace tl::llguidance
