// A text that grows byte by byte under a grammar.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/llguidance/handle.h"

namespace tl::llguidance {

// llguidance over a vocabulary of single bytes: its answers about tokens are then about bytes, and do not depend on how
// a tokenizer splits text.
class ByteText {
 public:
  // The tokenizer of the vocabulary of single bytes.
  static std::shared_ptr<const TokenizerHandle> tokenizer(const Functions& functions);
  explicit ByteText(Handle handle) : handle_(std::move(handle)) {}

  void append(std::string_view bytes);
  void take_back(std::size_t num_bytes);
  // The number of leading `bytes` that may come next.
  std::size_t num_allowed(std::string_view bytes);
  // Whether the text may end here.
  bool may_end();
  // The bytes that must come next; empty if there is a choice or the text may end.
  std::string forced();
  // The only byte other than white space that may come next; empty if there are several or none.
  std::optional<char> forced_but_for_space();

 private:
  Handle handle_;
};

}  // namespace tl::llguidance
