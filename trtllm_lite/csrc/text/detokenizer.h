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

// Pieces join to what the tokenizers library decodes of prompt and tokens together, without the prompt's own text; see
// ByteRun for where they may hold more. A piece ends at the end of a character.
class Detokenizer {
 public:
  // With `skips_special` special tokens print nothing, otherwise their names.
  Detokenizer(std::shared_ptr<const TokenBytes> tokens, std::span<const std::int32_t> prompt, bool skips_special);

  // Adds a token; appends to `text` what is certain now.
  void push(std::int32_t token, std::string& text);
  // No token follows: appends U+FFFD for what never became a character.
  void finish(std::string& text);

 private:
  void add(std::int32_t token, std::string& text);
  void strip(std::string& text, std::size_t begin);

  std::shared_ptr<const TokenBytes> tokens_;
  bool skips_special_;
  bool is_first_ = true;  // no token has been added
  int num_to_strip_;      // at most so many times may `stripped` still be taken off the start of the text
  LossyText bytes_;
  ByteRun byte_run_;
};

}  // namespace tl
