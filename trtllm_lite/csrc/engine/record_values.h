// The types of record fields for which the generator has no rule: extents, step-dependent numbers, attributes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/vocabulary.h"

namespace tl {

class JsonView;

// An extent of a tensor: an integer, or a symbol (then `value` is unused and 0).
struct Dim {
  std::int64_t value = 0;
  std::optional<Symbol> symbol;
  bool operator==(const Dim&) const = default;
};

std::string to_string(const Dim& dim);

// A value for each symbol; 0 for a symbol that the plan does not have.
class Extents {
 public:
  std::int64_t& operator[](Symbol symbol) { return values_[static_cast<std::size_t>(symbol)]; }
  std::int64_t operator[](Symbol symbol) const { return values_[static_cast<std::size_t>(symbol)]; }

 private:
  std::array<std::int64_t, kNumSymbols> values_{};
};

// constant + the sum of ceil(symbol * multiplier / divisor) over terms; never negative.
struct ExtentExpr {
  struct Term {
    Symbol symbol;
    std::int64_t multiplier;
    std::int64_t divisor;
  };
  std::int64_t constant = 0;
  std::vector<Term> terms;

  // The value in a step. `extents` must not exceed extents for which bound_at had a result.
  std::int64_t at(const Extents& extents) const {
    std::int64_t sum = constant;
    for (const Term& term : terms) sum += (extents[term.symbol] * term.multiplier + term.divisor - 1) / term.divisor;
    return sum;
  }
  // The value at the largest extents; empty if it exceeds kMaxBytes.
  std::optional<std::int64_t> bound_at(const Extents& largest) const;
};

using AttributeMap = std::map<std::string, std::variant<std::int64_t, double, std::string>>;

// Facts about a model that the runtime needs.
struct ModelFacts {
  std::int64_t vocab_size = 0;
  DType dtype = DType::kFloat32;  // type of unquantized matrices; on CPUs also that of products
};

// Readers of these types. They throw EngineError.
std::vector<Dim> read_shape(const JsonView& json);
ExtentExpr read_extent(const JsonView& json);
Extents read_bounds(const JsonView& json);
AttributeMap read_attributes(const JsonView& json);
ModelFacts read_model(const JsonView& json);
float read_float32(const JsonView& json);

}  // namespace tl
