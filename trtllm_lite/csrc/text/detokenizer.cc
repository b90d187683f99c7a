#include "text/detokenizer.h"

namespace tl {

Detokenizer::Detokenizer(std::shared_ptr<const TokenBytes> tokens, std::span<const std::int32_t> prompt,
                         bool skips_special)
    : tokens_(std::move(tokens)), skips_special_(skips_special), num_to_strip_(tokens_->rules().max_stripped) {
  std::string text;
  for (const std::int32_t token : prompt) {
    push(token, text);
    text.clear();
  }
  bytes_.take_as_shown();
  byte_run_.take_as_shown();
}

void Detokenizer::push(std::int32_t token, std::string& text) {
  if (!tokens_->has(token) || (skips_special_ && tokens_->is_special(token))) return;
  const std::size_t begin = text.size();
  add(token, text);
  is_first_ = false;
  if (num_to_strip_ > 0) strip(text, begin);
}

void Detokenizer::finish(std::string& text) {
  const std::size_t begin = text.size();
  bytes_.finish(text);
  byte_run_.end(text);
  if (num_to_strip_ > 0) strip(text, begin);
}

void Detokenizer::add(std::int32_t token, std::string& text) {
  const std::string_view own = is_first_ ? tokens_->text_of_first(token) : tokens_->text(token);
  if (tokens_->rules().bytes == ByteSpelling::kAlphabet) {
    bytes_.push(own, text);
  } else if (tokens_->is_byte(token)) {
    byte_run_.push(own.back(), text);
  } else {
    byte_run_.end(text);
    text += own;
  }
}

void Detokenizer::strip(std::string& text, std::size_t begin) {
  const std::string& stripped = tokens_->rules().stripped;
  while (num_to_strip_ > 0 && text.size() > begin) {
    if (text.compare(begin, stripped.size(), stripped) != 0) {
      num_to_strip_ = 0;
      return;
    }
    text.erase(begin, stripped.size());
    --num_to_strip_;
  }
}

}  // namespace tl
