// The tokens of a model as llguidance takes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "grammar/llguidance/handle.h"
#include "grammar/llguidance/token_texts.h"

namespace tl::llguidance {

// A model's tokens; threads may share the object.
class Vocabulary {
 public:
  Vocabulary(const Functions& functions, const std::string& tokenizer_json, std::uint32_t num_tokens,
             std::span<const std::uint32_t> ends)
      : end_ids(ends.begin(), ends.end()),
        vocab_size(num_tokens),
        tokenizer(std::make_shared<TokenizerHandle>(functions, init(tokenizer_json, vocab_size, end_ids))) {}

  bool ends(std::int32_t token) const { return std::ranges::count(end_ids, static_cast<std::uint32_t>(token)) > 0; }

  // The texts of the tokens. Computed at the first call, which takes a moment.
  std::shared_ptr<const TokenTexts> texts() const {
    std::call_once(texts_once_, [&] { texts_ = std::make_shared<const TokenTexts>(*tokenizer, vocab_size); });
    return texts_;
  }

  const std::vector<std::uint32_t> end_ids;
  const std::uint32_t vocab_size;
  const std::shared_ptr<const TokenizerHandle> tokenizer;

 private:
  // Without a tokenize function, no spelling of a text is preferred: a mask allows every token that continues the text,
  // and the model chooses the spelling as it would without a grammar.
  static TokenizerInit init(const std::string& tokenizer_json, std::uint32_t vocab_size,
                            const std::vector<std::uint32_t>& ends) {
    return {.struct_size = sizeof(TokenizerInit),
            .vocab_size = vocab_size,
            .end_id = ends.front(),
            .token_lengths = nullptr,
            .token_bytes = nullptr,
            .tokenizer_json = tokenizer_json.c_str(),
            .tokenize_takes_strings = false,
            .tokenize = nullptr,
            .tokenize_greedily = true,
            .tokenize_user_data = nullptr,
            .slices = nullptr,
            .more_end_ids = ends.data() + 1,
            .num_more_end_ids = static_cast<std::uint32_t>(ends.size() - 1)};
  }

  mutable std::once_flag texts_once_;
  mutable std::shared_ptr<const TokenTexts> texts_;
};

}  // namespace tl::llguidance
