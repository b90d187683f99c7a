// Makes text of tokens as they come.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "text/byte_run.h"
#include "text/lossy_text.h"
#include "text/token_bytes.h"

namespace tl {

// The pieces, joined, equal what the tokenizers library decodes from prompt and tokens together, without the prompt's
// own text; ByteRun describes an exception. A piece ends at the end of a character.
class Detokenizer {
 public:
  // `skips_special`: special tokens add nothing to the text; otherwise they add their names.
  Detokenizer(std::shared_ptr<const TokenBytes> tokens, std::span<const std::int32_t> prompt, bool skips_special);

  // Adds a token; appends to `text` what is certain now.
  void push(std::int32_t token, std::string& text);
  // Called after the last token: appends U+FFFD for an unfinished character.
  void finish(std::string& text);

 private:
  void add(std::int32_t token, std::string& text);
  void strip(std::string& text, std::size_t begin);

  std::shared_ptr<const TokenBytes> tokens_;
  bool skips_special_;
  bool is_first_ = true;  // no token has been added yet
  int num_to_strip_;      // how often `stripped` may still be removed from the start of the text
  LossyText bytes_;
  ByteRun byte_run_;
};

}  // namespace tl
