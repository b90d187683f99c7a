#include "engine/json_reader.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "errors.h"

namespace tl {
namespace {

constexpr std::size_t kMaxDepth = 16;
constexpr std::size_t kMaxQuoted = 60;

// Builds the value during parsing, so that time and memory grow linearly with the text, and limits are checked at every
// bracket, key and value. (nlohmann::json by itself keeps the last of duplicate keys, and its filter searches a whole
// container whenever an element ends.)
class JsonBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit JsonBuilder(std::string_view what) : what_(what) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON has no binary values
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) fail("expected every key once, found " + Json(name).dump().substr(0, kMaxQuoted) + " twice");
    member_ = &*member;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    fail("expected JSON, found a syntax error (" + std::string(error.what()) + ")");
  }

 private:
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() == kMaxDepth) fail("expected at most 16 levels of nesting, found more");
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  // Adds the value and returns its address, which stays valid: nothing is added to a container while one inside it is
  // open.
  Json* place(Json value) {
    if (++num_values_ > kMaxJsonValues) {
      fail("expected at most " + std::to_string(kMaxJsonValues) + " values, found more");
    }
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(value));
    return &(*member_ = std::move(value));
  }
  [[noreturn]] void fail(const std::string& message) const { throw EngineError(std::string(what_) + ": " + message); }

  std::string_view what_;
  Json root_;
  std::vector<Json*> open_;  // the containers that are not complete, innermost last
  Json* member_ = nullptr;   // the value of the innermost object's newest key
  std::size_t num_values_ = 0;
};

}  // namespace

std::shared_ptr<const Json> parse_json(std::string_view text, std::string_view what) {
  if (text.size() > kMaxJsonBytes) {
    throw EngineError(std::string(what) + ": expected at most " + std::to_string(kMaxJsonBytes) +
                      " bytes of JSON, found " + std::to_string(text.size()));
  }
  JsonBuilder builder(what);
  try {
    Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception& error) {
    throw EngineError(std::string(what) + ": expected JSON, found a syntax error (" + error.what() + ")");
  }
  return std::make_shared<const Json>(builder.take());
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

bool JsonView::is_string() const { return value_->is_string(); }

bool JsonView::is_integer() const { return value_->is_number_integer(); }

bool JsonView::is_null() const { return value_->is_null(); }

bool JsonView::has(const std::string& key) const { return value_->is_object() && value_->contains(key); }

const std::string& JsonView::string() const {
  if (!value_->is_string()) fail("a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonView::integer(std::int64_t min, std::int64_t max) const {
  // An integer above the range of int64 is unsigned, and so above any max.
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
  // A container is described by its type: printing it may take as long as parsing it.
  const std::string found =
      value_->is_structured() ? value_->type_name() : value_->dump(-1, ' ', true, Json::error_handler_t::replace);
  throw EngineError(path_.substr(0, 4 * kMaxQuoted) + ": expected " + expected + ", found " +
                    found.substr(0, kMaxQuoted));
}

}  // namespace tl
