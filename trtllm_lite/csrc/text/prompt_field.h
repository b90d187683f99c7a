// Finds the prompts in a request's body, so that megabytes of them are read without the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tl {

// A prompt: token ids, or a text. The text's JSON string, with its quotes, is `begin` to `end` of the body.
struct FoundPrompt {
  std::size_t begin, end;
  bool is_text;
  std::vector<std::int64_t> ids;
};

// The value of a field, from `begin` to `end` of the body: one prompt, or a list of `num_prompts`.
struct PromptField {
  std::size_t begin, end;
  bool is_list;
  std::size_t num_prompts;
  std::vector<FoundPrompt> prompts;  // the first prompts, as many as the caller wants
};

// Finds the field `name` of the object in `body`, with its first `most` prompts. Empty if the body has no such field or
// several, or if its value is neither a text, nor a list of token ids, nor a list of texts or of such lists. Strings,
// and the body outside the field, are not validated: if replacing the value by another JSON value gives valid JSON, the
// body was valid outside the field.
std::optional<PromptField> find_prompts(std::string_view body, std::string_view name, std::size_t most);

}  // namespace tl
