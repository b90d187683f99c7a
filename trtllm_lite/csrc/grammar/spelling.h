// How a model's tokenizer spells the pieces of predicted text.
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

#include "grammar/llguidance/token_texts.h"

namespace tl::llguidance {

// Returns the tokens of a text, or none if it cannot be spelled. Called by several threads at the same time.
using Tokenize = std::function<std::vector<std::int32_t>(const std::string&)>;

// Asks the tokenizer only once for each piece and caches the answer, because asking takes longer than finding the
// forced bytes. Threads may share the object.
class Spelling {
 public:
  Spelling(std::shared_ptr<const TokenTexts> texts, Tokenize tokenize)
      : texts_(std::move(texts)), tokenize_(std::move(tokenize)) {}

  // The tokens of `piece` after a token that wrote `last`. Empty if the tokenizer would instead have written a longer
  // token than `last`: the model is then not writing this text.
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
