// Predicts how texts go on under grammars of llguidance.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/layout.h"
#include "grammar/llguidance/byte_text.h"
#include "grammar/llguidance/token_texts.h"
#include "grammar/spelling.h"

namespace tl::llguidance {

// What the forcers for all texts of a model share.
struct ByteForcerTools {
  ByteForcerTools(std::shared_ptr<const TokenTexts> of_tokens, std::vector<std::uint32_t> ends, Tokenize tokenize)
      : texts(std::move(of_tokens)), end_ids(std::move(ends)), spelling(texts, std::move(tokenize)) {}

  const std::shared_ptr<const TokenTexts> texts;
  const std::vector<std::uint32_t> end_ids;
  const Spelling spelling;
};

// Predicts bytes as long as the grammar leaves only one continuation, then spells them as tokens.
class ByteForcer final : public TokenForcer {
 public:
  // `start`: a matcher of the empty text.
  ByteForcer(std::shared_ptr<const ByteForcerTools> tools, Handle start)
      : tools_(std::move(tools)), text_(std::move(start)) {}

  void accept(std::span<const std::int32_t> tokens) override;
  std::vector<std::int32_t> forced_tokens(int most) override;
  int num_allowed(std::span<const std::int32_t> tokens) override;

 private:
  bool ends(std::int32_t token) const;
  std::string next_bytes(const TextLayout::Place& place);

  const std::shared_ptr<const ByteForcerTools> tools_;
  ByteText text_;
  TextLayout layout_;
  std::string_view last_;  // the bytes of the newest token
};

}  // namespace tl::llguidance
