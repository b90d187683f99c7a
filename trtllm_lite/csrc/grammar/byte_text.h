// A text that grows byte by byte under a grammar.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/llguidance_handle.h"

namespace tl::llguidance {

// llguidance over a vocabulary of single bytes: what it says of tokens it then says of bytes, and between texts of
// bytes no tokenizer has a choice.
class ByteText {
 public:
  // What matchers of such texts refer to.
  static std::shared_ptr<const TokenizerHandle> tokenizer(const Functions& functions);
  explicit ByteText(Handle handle) : handle_(std::move(handle)) {}

  void append(std::string_view bytes);
  void take_back(std::size_t num_bytes);
  // How many of `bytes`, from the first on, may come next.
  std::size_t num_allowed(std::string_view bytes);
  // Whether the text may end here.
  bool may_end();
  // The bytes that have to come next; none where there is a choice, or where the text may end.
  std::string forced();
  // The one byte that may come next beside white space; none if there are others, or none.
  std::optional<char> forced_but_for_space();

 private:
  Handle handle_;
};

}  // namespace tl::llguidance
