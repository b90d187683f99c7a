// Makes the text of one sequence as its tokens come: detokenizes them, and ends the text at a stop word.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/answer_filter.h"
#include "text/detokenizer.h"
#include "text/stop_filter.h"
#include "text/stop_words.h"
#include "text/thoughts.h"
#include "text/token_bytes.h"
#include "text/token_gaps.h"

namespace tl {

struct TextOptions {
  bool skips_special = true;
  bool returns_text = true;    // false: the text is only searched for stop words
  int min_tokens = 0;          // a stop word that is complete earlier is ignored
  bool includes_stop = false;  // the text includes the stop word or end token that ended it
};

class TextStream {
 public:
  // Without `tokens` there is no text, and only stop sequences of tokens are found. With `thoughts`, which need
  // `tokens`, only stop words in the answer count: texts within it, and sequences whose tokens come after it has begun.
  TextStream(std::shared_ptr<const TokenBytes> tokens, std::span<const std::int32_t> prompt,
             std::shared_ptr<const StopWords> stop_words, std::shared_ptr<const Thoughts> thoughts,
             const TextOptions& options);

  // Adds a token; appends to `text` what is certain now: whole characters, which are never taken back. `is_end`: the
  // token itself ends the text.
  void push(std::int32_t token, bool is_end, std::string& text);
  // Called when generation has ended: appends what is still held back.
  void finish(std::string& text);

  bool has_stopped() const { return texts_.match() || sequences_.match(); }
  // The stop word, as text, that has ended the text; null if none has.
  const std::string* matched_text() const {
    return texts_.match() ? &stop_words_->texts()[static_cast<std::size_t>(*texts_.match())] : nullptr;
  }
  const StopWords::Tokens* matched_sequence() const {
    return sequences_.match() ? &stop_words_->sequences()[static_cast<std::size_t>(*sequences_.match())] : nullptr;
  }

  TokenGaps::Mark& gap_mark() { return gap_mark_; }

 private:
  bool is_armed() const { return num_tokens_ >= options_.min_tokens; }
  // Detokenizes `passed_` and searches the result for stop words.
  void add_passed(std::string& text);

  std::shared_ptr<const TokenBytes> tokens_;
  std::shared_ptr<const StopWords> stop_words_;
  TextOptions options_;
  std::optional<Detokenizer> detokenizer_;
  StopFilter<std::vector<std::int32_t>> sequences_;
  AnswerFilter texts_;
  int num_tokens_ = 0;
  std::vector<std::int32_t> passed_;  // tokens that are not part of a stop sequence and not yet detokenized
  std::string piece_, unreturned_;    // members, so that their memory is reused
  TokenGaps::Mark gap_mark_;
};

}  // namespace tl
