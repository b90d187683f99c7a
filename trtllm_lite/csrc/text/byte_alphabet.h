// The alphabet in which GPT-2's tokenizer, and all that followed it, spells bytes.
#pragma once

#include <string>
#include <string_view>

namespace tl {

// Adds the bytes that `token`, which is UTF-8, stands for. A token with a character outside of the alphabet stands for
// itself, as in the tokenizers library.
void append_spelled_bytes(std::string_view token, std::string& bytes);

}  // namespace tl
