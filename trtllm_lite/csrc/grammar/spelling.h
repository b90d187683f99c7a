// How a model's tokenizer spells the pieces of texts that are guessed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/token_texts.h"

namespace tl::llguidance {

// Tokens of a text, or none if it has no spelling; threads may call it at the same time.
using Tokenize = std::function<std::vector<std::int32_t>(const std::string&)>;

// Asks the tokenizer once for each piece, as its answers take longer than all the rest of a guess. Threads share it.
class Spelling {
 public:
  Spelling(std::shared_ptr<const TokenTexts> texts, Tokenize tokenize)
      : texts_(std::move(texts)), tokenize_(std::move(tokenize)) {}

  // The tokens of `piece` behind a token that wrote `last`; none if the tokenizer would not have written that token
  // then, but a longer one: a text that goes on so is not the one which the model is writing.
  std::vector<std::int32_t> of(std::string_view last, const std::string& piece) const;

 private:
  static constexpr std::size_t kMostKept = 8192;

  std::vector<std::int32_t> found(std::string_view last, const std::string& piece) const;
  std::vector<std::int32_t> tokens_of(const std::string& text) const;

  const std::shared_ptr<const TokenTexts> texts_;
  const Tokenize tokenize_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, std::vector<std::int32_t>> kept_;
};

}  // namespace tl::llguidance
