// Reads JSON from files that may be hostile: depth is bounded, duplicate keys are refused, every access is typed, and
// every message has the path of the value. Only json_reader.cc includes the library's own header, which takes a
// compiler more than a second to read.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/vocabulary.h"

namespace tl {

using Json = nlohmann::json;

// The most values in a text: a parsed value takes several times the memory of its text.
constexpr std::size_t kMaxJsonValues = std::size_t{4} << 20;

// The value of a text, never null. Throws EngineError that names `what`, such as "plan". A text of more than
// kMaxJsonBytes is refused without parsing.
std::shared_ptr<const Json> parse_json(std::string_view text, std::string_view what);

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

  bool is_string() const;
  bool is_integer() const;
  bool is_null() const;
  bool has(const std::string& key) const;
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
