#include "adapters/adapter.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace tl {
namespace {

void expect(bool holds, const std::string& what, std::int64_t limit, std::int64_t found, const std::string& remedy) {
  if (holds) return;
  throw LimitError("adapter: " + what + ": expected " + std::to_string(limit) + ", found " + std::to_string(found) +
                   ": " + remedy);
}

void check(const LowRankPair& pair, const LowRankShape& shape, std::int64_t max_rank) {
  if (pair.rank < 1 || pair.rank > max_rank) {
    throw LimitError("adapter: expected a rank of 1 to " + std::to_string(max_rank) + ", found " +
                     std::to_string(pair.rank) + ": build the engine with a larger --max_lora_rank");
  }
  const std::string remedy = "take an adapter of this model";
  expect(std::ssize(pair.a) == pair.rank * shape.in_features, "elements of A", pair.rank * shape.in_features,
         std::ssize(pair.a), remedy);
  expect(std::ssize(pair.b) == pair.rank * shape.out_features, "elements of B", pair.rank * shape.out_features,
         std::ssize(pair.b), remedy);
}

}  // namespace

Adapter::Adapter(LowRankShapes shapes, const std::map<std::int64_t, LowRankPair>& pairs, std::string key)
    : shapes_(std::move(shapes)), parts_(shapes_.parts.size()), key_(std::move(key)) {
  std::size_t size = 0;
  for (const auto& [number, pair] : pairs) {
    if (number < 0 || number >= std::ssize(shapes_.parts)) {
      throw LimitError("adapter: expected projections below " + std::to_string(shapes_.parts.size()) + ", found " +
                       std::to_string(number) + ": build the engine with --max_lora_rank");
    }
    check(pair, shapes_.parts[static_cast<std::size_t>(number)], shapes_.max_rank);
    size += pair.a.size() + pair.b.size();
  }
  values_.reserve(size);  // so that pointers to its elements stay
  for (const auto& [number, pair] : pairs) {
    LowRankPart& part = parts_[static_cast<std::size_t>(number)];
    part = {values_.data() + values_.size(), nullptr, pair.rank};
    values_.insert(values_.end(), pair.a.begin(), pair.a.end());
    part.b = values_.data() + values_.size();
    values_.insert(values_.end(), pair.b.begin(), pair.b.end());
  }
}

}  // namespace tl
