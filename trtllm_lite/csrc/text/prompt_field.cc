#include "text/prompt_field.h"

#include <charconv>
#include <utility>

namespace tl {
namespace {

// Reads JSON from the left. Methods that read a value return false if there is none of their kind.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  std::size_t place() const { return place_; }
  bool is_at(char character) const { return place_ < text_.size() && text_[place_] == character; }

  void skip_space() {
    while (is_at(' ') || is_at('\n') || is_at('\r') || is_at('\t')) ++place_;
  }

  // Takes `character` and the white space before it.
  bool take(char character) {
    skip_space();
    if (!is_at(character)) return false;
    ++place_;
    return true;
  }

  bool take_string() {
    if (!take('"')) return false;
    while (true) {
      place_ = text_.find_first_of("\"\\", place_);
      if (place_ == std::string_view::npos) return fail();
      if (text_[place_] == '"') break;
      place_ += 2;  // a backslash and the character that it escapes
    }
    ++place_;
    return true;
  }

  bool take_integer(std::int64_t& value) {
    skip_space();
    const char* begin = text_.data() + place_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) return false;
    const char* digits = begin + (*begin == '-' ? 1 : 0);
    if (*digits == '0' && end - digits > 1) return false;  // JSON has no leading zeros
    place_ += static_cast<std::size_t>(end - begin);
    return true;
  }

  // Takes any value. Brackets are counted, but their kinds are not compared.
  bool take_value() {
    skip_space();
    if (is_at('"')) return take_string();
    int depth = 0;
    while (place_ < text_.size()) {
      const char next = text_[place_];
      if (next == '"') {
        if (!take_string()) return false;
        continue;
      }
      if (depth == 0 && (next == ',' || next == '}' || next == ']')) return true;
      depth += static_cast<int>(next == '{' || next == '[') - static_cast<int>(next == '}' || next == ']');
      ++place_;
    }
    return false;
  }

 private:
  bool fail() {
    place_ = text_.size();
    return false;
  }

  std::string_view text_;
  std::size_t place_ = 0;
};

bool take_ids(JsonReader& reader, std::vector<std::int64_t>& ids) {
  if (reader.take(']')) return true;
  do {
    if (!reader.take_integer(ids.emplace_back())) return false;
  } while (reader.take(','));
  return reader.take(']');
}

// Takes a text or a list of token ids.
bool take_prompt(JsonReader& reader, FoundPrompt& prompt) {
  reader.skip_space();
  prompt.begin = reader.place();
  prompt.is_text = reader.is_at('"');
  if (!(prompt.is_text ? reader.take_string() : reader.take('[') && take_ids(reader, prompt.ids))) return false;
  prompt.end = reader.place();
  return true;
}

bool take_prompts(JsonReader& reader, PromptField& field, std::size_t most) {
  do {
    FoundPrompt prompt{};
    if (!take_prompt(reader, prompt)) return false;
    if (field.num_prompts++ < most) field.prompts.push_back(std::move(prompt));
  } while (reader.take(','));
  return reader.take(']');
}

// Takes the value of a field: a prompt or a list of prompts.
bool take_field(JsonReader& reader, PromptField& field, std::size_t most) {
  reader.skip_space();
  field.begin = reader.place();
  JsonReader inside = reader;
  field.is_list = inside.take('[') && (inside.skip_space(), inside.is_at('"') || inside.is_at('['));
  if (field.is_list) {
    if (!take_prompts(inside, field, most)) return false;
    reader = inside;
  } else {
    field.num_prompts = 1;
    if (!take_prompt(reader, field.prompts.emplace_back())) return false;
  }
  field.end = reader.place();
  return true;
}

}  // namespace

std::optional<PromptField> find_prompts(std::string_view body, std::string_view name, std::size_t most) {
  JsonReader reader(body);
  std::optional<PromptField> found;
  if (!reader.take('{')) return std::nullopt;
  do {
    reader.skip_space();
    const std::size_t begin = reader.place() + 1;
    if (!reader.take_string()) return std::nullopt;
    const std::string_view key = body.substr(begin, reader.place() - 1 - begin);
    if (!reader.take(':')) return std::nullopt;
    if (key != name) {
      if (!reader.take_value()) return std::nullopt;
    } else if (found || !take_field(reader, found.emplace(), most)) {
      return std::nullopt;
    }
  } while (reader.take(','));
  return reader.take('}') ? std::move(found) : std::nullopt;
}

}  // namespace tl
