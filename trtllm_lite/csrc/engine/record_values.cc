#include "engine/record_values.h"

#include <cmath>
#include <limits>

#include "engine/record_readers.h"

namespace tl {
namespace {

constexpr std::size_t kMaxTerms = 8;

Symbol read_symbol(const JsonView& json) { return read_enum<Symbol>(json, kSymbolNames); }

}  // namespace

std::string to_string(const Dim& dim) {
  return dim.symbol ? std::string(to_string(*dim.symbol)) : std::to_string(dim.value);
}

std::optional<std::int64_t> ExtentExpr::bound_at(const Extents& largest) const {
  __extension__ using Wide = __int128;  // a single term may have 60 bits
  Wide sum = constant;
  for (const Term& term : terms) {
    sum += (static_cast<Wide>(largest[term.symbol]) * term.multiplier + term.divisor - 1) / term.divisor;
  }
  if (sum > kMaxBytes) return std::nullopt;
  return static_cast<std::int64_t>(sum);
}

std::vector<Dim> read_shape(const JsonView& json) {
  const std::vector<JsonView> extents = json.elements();
  if (extents.empty() || extents.size() > kMaxRank) json.fail("1 to " + std::to_string(kMaxRank) + " extents");
  std::vector<Dim> shape;
  for (const JsonView& extent : extents) {
    if (extent.is_string()) {
      shape.push_back({0, read_symbol(extent)});
    } else {
      shape.push_back({extent.integer(1, kMaxExtent - 1), std::nullopt});
    }
  }
  return shape;
}

ExtentExpr read_extent(const JsonView& json) {
  if (json.is_integer()) return {json.integer(0, kMaxBytes), {}};
  json.expect_keys({"const", "terms"});
  ExtentExpr extent{json.at("const").integer(0, kMaxBytes), {}};
  const std::vector<JsonView> terms = json.at("terms").elements();
  if (terms.size() > kMaxTerms) json.at("terms").fail("at most " + std::to_string(kMaxTerms) + " terms");
  for (const JsonView& term : terms) {
    const std::vector<JsonView> parts = term.elements();
    if (parts.size() != 3) term.fail("a symbol, a multiplier and a divisor");
    extent.terms.push_back(
        {read_symbol(parts[0]), parts[1].integer(0, kMaxExtent - 1), parts[2].integer(1, kMaxExtent - 1)});
  }
  return extent;
}

Extents read_bounds(const JsonView& json) {
  Extents bounds;
  for (const auto& [name, bound] : json.members()) {
    bounds[enum_of<Symbol>(json, name, kSymbolNames)] = bound.integer(1, kMaxExtent - 1);
  }
  return bounds;
}

AttributeMap read_attributes(const JsonView& json) {
  AttributeMap attributes;
  for (const auto& [name, value] : json.members()) {
    if (value.is_string()) {
      attributes.emplace(name, value.string());
    } else if (value.is_integer()) {
      attributes.emplace(name, value.integer(-kMaxExtent, kMaxExtent));
    } else {
      attributes.emplace(name, value.finite_number());
    }
  }
  return attributes;
}

ModelFacts read_model(const JsonView& json) {
  const JsonView dtype = json.at("dtype");
  return {.vocab_size = json.at("vocab_size").integer(1, kMaxExtent - 1),
          .dtype = enum_of<DType>(dtype, dtype.string(), kDTypeNames)};
}

float read_float32(const JsonView& json) {
  const double value = json.finite_number();
  if (std::abs(value) > std::numeric_limits<float>::max()) json.fail("a number that float32 can hold");
  return static_cast<float>(value);
}

}  // namespace tl
