// The stop words of a request.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "text/word_matcher.h"

namespace tl {

// Stop words given as UTF-8 text and as token ids. Threads may share them.
class StopWords {
 public:
  using Tokens = std::vector<std::int32_t>;

  StopWords(std::vector<std::string> texts, std::vector<Tokens> sequences)
      : texts_(std::move(texts)),
        sequences_(std::move(sequences)),
        text_matcher_(WordMatcher::over_bytes(texts_)),
        token_matcher_(sequences_) {}

  const std::vector<std::string>& texts() const { return texts_; }
  const std::vector<Tokens>& sequences() const { return sequences_; }
  // A matcher over bytes; in UTF-8, a word can only begin and end where a character does.
  const WordMatcher& text_matcher() const { return text_matcher_; }
  const WordMatcher& token_matcher() const { return token_matcher_; }

 private:
  std::vector<std::string> texts_;
  std::vector<Tokens> sequences_;
  WordMatcher text_matcher_, token_matcher_;
};

}  // namespace tl
