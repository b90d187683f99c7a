// The alphabet in which GPT-2's tokenizer, and many after it, spell bytes.
#pragma once

#include <string>
#include <string_view>

namespace tl {

// Appends the bytes that `token`, in UTF-8, stands for. A token with a character outside the alphabet stands for
// itself, as in the tokenizers library.
void append_spelled_bytes(std::string_view token, std::string& bytes);

}  // namespace tl
