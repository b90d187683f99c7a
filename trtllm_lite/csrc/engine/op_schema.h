// The schema of an operator in C++. plugins/generate_cpp.py writes the tables from schema.toml. The structs are laid
// out as in C, because shared libraries of other packages bring theirs (cpu/plugin_library.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpu/kernel.h"

namespace tl {

// Elements that lie side by side and live as long as the process.
template <typename T>
struct List {
  const T* first = nullptr;
  std::size_t count = 0;

  constexpr List() = default;
  template <std::size_t Count>
  constexpr List(const std::array<T, Count>& elements) : first(elements.data()), count(Count) {}

  constexpr const T* begin() const { return first; }
  constexpr const T* end() const { return first + count; }
  constexpr std::size_t size() const { return count; }
  constexpr const T& operator[](std::size_t index) const { return first[index]; }
};

template <typename Enum>
constexpr std::uint32_t bit(Enum value) {
  return 1u << static_cast<unsigned>(value);
}

// An extent of a schema. `symbol` is an index into OpSchema::symbols; -1 means the integer `value`.
struct ExtentSpec {
  int symbol = -1;
  std::int64_t value = 0;
};

struct ArgumentSpec {
  const char* name = "";
  std::uint32_t dtypes = 0;   // a bit for each DType that is allowed
  std::uint32_t layouts = 0;  // a bit for each Layout that is allowed
  bool optional = false;
  int alias = -1;               // for outputs: the input whose storage the output shares
  const char* step_input = "";  // for int32 inputs: the step input that must be passed here
  bool state = false;           // memory kept between steps; for outputs: the operator adds to it
  bool constant = false;        // for int32 inputs: a weight whose values are indices
  int below = -1;               // the symbol that is an upper bound of the values of the step input or constant
  int present_with = -1;        // an optional input that must be present if and only if this one is
  int scaled_by = -1;           // an optional input that must be present if and only if this one's dtype needs scales
  int rank = 0;
  ExtentSpec shape[kMaxRank] = {};
};

enum class AttributeKind : std::uint8_t { kInt, kFloat, kChoice, kText };

struct AttributeSpec {
  const char* name = "";
  AttributeKind kind = AttributeKind::kInt;
  List<const char*> choices;  // for kChoice: the names that are allowed
};

// A relation between extents (by symbol) and attributes (by position) that a valid call satisfies.
struct ConstraintSpec {
  const char* text = "";
  std::uint32_t symbol_mask = 0;  // a bit for each symbol that the constraint reads
  bool (*holds)(const std::int64_t* extents, const AttributeValue* attributes) = nullptr;
};

constexpr int kMaxSymbols = 32;

struct OpSchema {
  const char* name = "";
  List<const char*> symbols;
  List<ArgumentSpec> inputs;
  List<ArgumentSpec> outputs;
  List<AttributeSpec> attributes;
  List<ConstraintSpec> constraints;
};

}  // namespace tl
