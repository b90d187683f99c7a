#include "text/text_stream.h"

namespace tl {

TextStream::TextStream(std::shared_ptr<const TokenBytes> tokens, std::span<const std::int32_t> prompt,
                       std::shared_ptr<const StopWords> stop_words, std::shared_ptr<const Thoughts> thoughts,
                       const TextOptions& options)
    : tokens_(std::move(tokens)),
      stop_words_(std::move(stop_words)),
      options_(options),
      sequences_(stop_words_->token_matcher(), options.includes_stop),
      texts_(stop_words_->text_matcher(), options.includes_stop, std::move(thoughts)) {
  if (tokens_) detokenizer_.emplace(tokens_, prompt, options.skips_special);
}

void TextStream::push(std::int32_t token, bool is_end, std::string& text) {
  ++num_tokens_;
  if (is_end && !options_.includes_stop) return;
  sequences_.push({token}, is_armed() && texts_.is_in_answer(), passed_);
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
  if (!texts_.match()) texts_.finish(is_armed(), out);
  unreturned_.clear();
}

void TextStream::add_passed(std::string& text) {
  std::string& out = options_.returns_text ? text : unreturned_;
  piece_.clear();
  if (detokenizer_ && !texts_.match()) {
    for (const std::int32_t token : passed_) {
      detokenizer_->push(token, piece_);
      if (texts_.is_in_answer() || !options_.skips_special || !tokens_->is_special(token)) continue;
      texts_.push(piece_, is_armed(), out);
      piece_.clear();
      texts_.push_unseen(tokens_->text(token), out);
    }
    if (!texts_.match()) texts_.push(piece_, is_armed(), out);
  }
  passed_.clear();
  unreturned_.clear();
}

}  // namespace tl
