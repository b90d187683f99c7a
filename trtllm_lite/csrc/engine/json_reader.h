// JSON from a file that may be hostile: bounded depth, no duplicate keys, every access typed, every message with a
// path.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/vocabulary.h"

namespace tl {

using Json = nlohmann::json;

// More values than this in a text are refused: a parsed value takes several times its text.
constexpr std::size_t kMaxJsonValues = std::size_t{4} << 20;

// Throws EngineError naming `what`, e.g. "plan". A text of more than kMaxJsonBytes is refused before it is parsed.
Json parse_json(std::string_view text, std::string_view what);

// A value and where it stands, e.g. "plan.tensors[3].dtype". Borrows the value. Every accessor throws EngineError if
// the value is not what it asks for.
class JsonView {
 public:
  JsonView(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  JsonView at(const std::string& key) const;
  // The object has these keys and no others.
  void expect_keys(std::initializer_list<const char*> keys) const;
  std::vector<std::pair<std::string, JsonView>> members() const;
  std::vector<JsonView> elements() const;

  bool is_string() const { return value_->is_string(); }
  bool is_integer() const { return value_->is_number_integer(); }
  bool is_null() const { return value_->is_null(); }
  bool has(const std::string& key) const { return value_->is_object() && value_->contains(key); }
  const std::string& string() const;
  std::int64_t integer(std::int64_t min, std::int64_t max) const;
  double finite_number() const;
  bool boolean() const;

  [[noreturn]] void fail(const std::string& expected) const;

 private:
  const Json* value_;
  std::string path_;
};

}  // namespace tl
