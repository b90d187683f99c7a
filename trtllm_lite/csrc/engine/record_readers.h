// The readers that generated code calls. Each throws EngineError with the path of the value.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/json_reader.h"
#include "engine/record_values.h"

namespace tl {

// The enumerator whose index is that of `text` in `names`.
template <typename Enum, typename Names>
Enum enum_of(const JsonView& json, std::string_view text, const Names& names) {
  const auto found = std::ranges::find(names, text);
  if (found != std::end(names)) return static_cast<Enum>(found - std::begin(names));
  std::string expected;
  for (const std::string_view name : names) expected += (expected.empty() ? "" : ", ") + std::string(name);
  json.fail("one of " + expected);
}

template <typename Enum, typename Names>
Enum read_enum(const JsonView& json, const Names& names) {
  return enum_of<Enum>(json, json.string(), names);
}

inline int read_index(const JsonView& json, std::size_t size) {
  return static_cast<int>(json.integer(0, static_cast<std::int64_t>(size) - 1));
}

inline std::string read_name(const JsonView& json, std::size_t max_bytes) {
  const std::string& name = json.string();
  if (name.empty() || name.size() > max_bytes) json.fail("1 to " + std::to_string(max_bytes) + " bytes");
  return name;
}

template <std::size_t kWords>
std::array<std::uint64_t, kWords> read_hex(const JsonView& json) {
  constexpr std::size_t kDigitsPerByte = 2;
  std::array<std::uint64_t, kWords> words{};
  const std::string& digits = json.string();
  auto* bytes = reinterpret_cast<unsigned char*>(words.data());
  bool valid = digits.size() == kDigitsPerByte * sizeof(words);
  for (std::size_t i = 0; valid && i < sizeof(words); ++i) {
    const char* first = digits.data() + kDigitsPerByte * i;
    valid = std::from_chars(first, first + kDigitsPerByte, bytes[i], 16).ptr == first + kDigitsPerByte;
  }
  if (!valid) json.fail(std::to_string(kDigitsPerByte * sizeof(words)) + " hexadecimal digits");
  return words;
}

template <typename Read>
auto read_optional(const JsonView& json, Read read) {
  return json.is_null() ? std::nullopt : std::optional(read(json));
}

template <typename Read>
auto read_list(const JsonView& json, Read read) {
  std::vector<decltype(read(json))> list;
  for (const JsonView& item : json.elements()) list.push_back(read(item));
  return list;
}

template <std::size_t kSize, typename Read>
auto read_array(const JsonView& json, Read read) {
  const std::vector<JsonView> items = json.elements();
  if (items.size() != kSize) json.fail(std::to_string(kSize) + " items");
  std::array<decltype(read(json)), kSize> array;
  std::ranges::transform(items, array.begin(), read);
  return array;
}

template <typename Read>
auto read_map(const JsonView& json, Read read) {
  std::map<std::string, decltype(read(json))> map;
  for (const auto& [key, value] : json.members()) map.emplace(key, read(value));
  return map;
}

}  // namespace tl
