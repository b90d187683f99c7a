// Reads JSON from files that may be hostile: depth is bounded, duplicate keys are refused, every access is typed, and
// every message has the path of the value.
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

// The most values in a text: a parsed value takes several times the memory of its text.
constexpr std::size_t kMaxJsonValues = std::size_t{4} << 20;

// Throws EngineError that names `what`, such as "plan". A text of more than kMaxJsonBytes is refused without parsing.
Json parse_json(std::string_view text, std::string_view what);

// A value and its path, such as "plan.tensors[3].dtype". Borrows the value. Every accessor throws EngineError if the
// value is not of the requested kind.
class JsonView {
 public:
  JsonView(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  JsonView at(const std::string& key) const;
  // Throws unless the object has exactly these keys.
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
