#include "engine/json_reader.h"

#include <cmath>
#include <set>

#include "errors.h"

namespace tl {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxQuoted = 60;

// Called by the parser at every bracket and key. nlohmann::json itself keeps the last of duplicate keys.
class StructureGuard {
 public:
  explicit StructureGuard(std::string_view what) : what_(what) {}

  bool operator()(int, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (keys_.size() == kMaxDepth) fail("expected at most 16 levels of nesting, found more");
        keys_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second) {
          fail("expected every key once, found " + parsed.dump().substr(0, kMaxQuoted) + " twice");
        }
        break;
      case Json::parse_event_t::value:
        break;
    }
    return true;
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw EngineError(std::string(what_) + ": " + message); }

  std::string_view what_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what) {
  if (text.size() > kMaxJsonBytes) {
    throw EngineError(std::string(what) + ": expected at most " + std::to_string(kMaxJsonBytes) +
                      " bytes of JSON, found " + std::to_string(text.size()));
  }
  StructureGuard guard(what);
  try {
    return Json::parse(text.begin(), text.end(), std::ref(guard));
  } catch (const Json::exception& error) {
    throw EngineError(std::string(what) + ": expected JSON, found a syntax error (" + error.what() + ")");
  }
}

JsonView JsonView::at(const std::string& key) const {
  if (!value_->is_object()) fail("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) fail("a member \"" + key + "\"");
  return {*found, path_ + "." + key};
}

void JsonView::expect_keys(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) at(key);
  if (value_->size() == keys.size()) return;
  for (const auto& [key, view] : members()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) fail("no member " + Json(key).dump());
  }
}

std::vector<std::pair<std::string, JsonView>> JsonView::members() const {
  if (!value_->is_object()) fail("an object");
  std::vector<std::pair<std::string, JsonView>> result;
  for (const auto& [key, value] : value_->items()) result.emplace_back(key, JsonView(value, path_ + "." + key));
  return result;
}

std::vector<JsonView> JsonView::elements() const {
  if (!value_->is_array()) fail("an array");
  std::vector<JsonView> result;
  for (std::size_t i = 0; i < value_->size(); ++i) {
    result.emplace_back((*value_)[i], path_ + "[" + std::to_string(i) + "]");
  }
  return result;
}

const std::string& JsonView::string() const {
  if (!value_->is_string()) fail("a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonView::integer(std::int64_t min, std::int64_t max) const {
  // Above the range of int64 a number is unsigned, and so above any max.
  const bool in_range = value_->is_number_integer() &&
                        !(value_->is_number_unsigned() && value_->get<std::uint64_t>() > std::uint64_t{INT64_MAX}) &&
                        value_->get<std::int64_t>() >= min && value_->get<std::int64_t>() <= max;
  if (!in_range) fail("an integer from " + std::to_string(min) + " to " + std::to_string(max));
  return value_->get<std::int64_t>();
}

double JsonView::finite_number() const {
  if (!value_->is_number() || !std::isfinite(value_->get<double>())) fail("a finite number");
  return value_->get<double>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail("true or false");
  return value_->get<bool>();
}

void JsonView::fail(const std::string& expected) const {
  // Containers are named, not printed: dumping one may take as long as parsing it.
  const std::string found =
      value_->is_structured() ? value_->type_name() : value_->dump(-1, ' ', true, Json::error_handler_t::replace);
  throw EngineError(path_.substr(0, 4 * kMaxQuoted) + ": expected " + expected + ", found " +
                    found.substr(0, kMaxQuoted));
}

}  // namespace tl
