#include "text/text_stream.h"

namespace tl {

TextStream::TextStream(std::shared_ptr<const TokenBytes> tokens, std::span<const std::int32_t> prompt,
                       std::shared_ptr<const StopWords> stop_words, const TextOptions& options)
    : stop_words_(std::move(stop_words)),
      options_(options),
      sequences_(stop_words_->token_matcher(), options.includes_stop),
      texts_(stop_words_->text_matcher(), options.includes_stop) {
  if (tokens) detokenizer_.emplace(std::move(tokens), prompt, options.skips_special);
}

void TextStream::push(std::int32_t token, bool is_end, std::string& text) {
  ++num_tokens_;
  if (is_end && !options_.includes_stop) return;
  sequences_.push({token}, is_armed(), passed_);
  add_passed(text);
}

void TextStream::finish(std::string& text) {
  sequences_.finish(passed_);
  add_passed(text);
  if (texts_.match()) return;
  std::string& out = options_.returns_text ? text : unreturned_;
  if (detokenizer_) {
    piece_.clear();
    detokenizer_->finish(piece_);
    texts_.push(piece_, is_armed(), out);
  }
  if (!texts_.match()) texts_.finish(out);
  unreturned_.clear();
}

void TextStream::add_passed(std::string& text) {
  if (detokenizer_ && !texts_.match()) {
    piece_.clear();
    for (const std::int32_t token : passed_) detokenizer_->push(token, piece_);
    texts_.push(piece_, is_armed(), options_.returns_text ? text : unreturned_);
  }
  passed_.clear();
  unreturned_.clear();
}

}  // namespace tl
