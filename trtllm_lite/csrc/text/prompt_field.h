// Finds the prompts in a request's body, so that megabytes of them are read without the interpreter's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tl {

// A prompt: token ids, or a text, whose JSON string with its quotes is `begin` to `end` of the body.
struct FoundPrompt {
  std::size_t begin, end;
  bool is_text;
  std::vector<std::int64_t> ids;
};

// The value of a field, which is `begin` to `end` of the body: one prompt, or a list of `num_prompts`.
struct PromptField {
  std::size_t begin, end;
  bool is_list;
  std::size_t num_prompts;
  std::vector<FoundPrompt> prompts;  // the first ones, as many as are wanted
};

// The field `name` of the object that `body` is, with its first `most` prompts. Nothing if the body has no such field,
// or several; or if its value is no text, list of token ids, or list of those. Neither strings nor what is beside the
// field are checked: put another value in its place, and what is then JSON was JSON before.
std::optional<PromptField> find_prompts(std::string_view body, std::string_view name, std::size_t most);

}  // namespace tl
