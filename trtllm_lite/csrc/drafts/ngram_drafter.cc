#include "drafts/ngram_drafter.h"

#include <algorithm>
#include <string>

#include "errors.h"

namespace tl {
namespace {

// The most tokens of a prompt that one call indexes, so that no step waits long.
constexpr std::int32_t kMostIndexedAtOnce = 1024;
constexpr std::size_t kLeastPlaces = 64;

std::uint64_t hash(std::span<const std::int32_t> ngram) {
  std::uint64_t hash = 0x9e3779b97f4a7c15ull;
  for (const std::int32_t token : ngram) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xff51afd7ed558ccdull;
    hash ^= hash >> 32;
  }
  return hash;
}

std::span<const std::int32_t> ngram_at(std::int32_t end, int size, std::span<const std::int32_t> tokens) {
  return tokens.subspan(static_cast<std::size_t>(end - size), static_cast<std::size_t>(size));
}

}  // namespace

NgramDrafter::NgramDrafter(const NgramSizes& sizes) : sizes_(sizes) {
  if (sizes.min < 1 || sizes.max < sizes.min || sizes.max > kMaxNgramSize) {
    throw ArgumentError(
        "prompt_lookup_min and prompt_lookup_max: expected 1 <= min <= max <= " + std::to_string(kMaxNgramSize) +
        ", found " + std::to_string(sizes.min) + " and " + std::to_string(sizes.max));
  }
  indices_.resize(static_cast<std::size_t>(sizes.max - sizes.min + 1));
}

void NgramDrafter::draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) {
  const auto num_tokens = static_cast<std::int32_t>(tokens.size());
  const std::int32_t end = std::min(num_tokens, num_indexed_ + kMostIndexedAtOnce);
  std::optional<std::int32_t> match;
  for (; num_indexed_ < end; ++num_indexed_) {
    match.reset();
    for (int size = sizes_.min; size <= std::min(sizes_.max, num_indexed_ + 1); ++size) {
      if (const auto before = replace(size, num_indexed_ + 1, tokens)) match = before;
    }
  }
  if (num_indexed_ < num_tokens || !match) return;
  for (int i = 0; i < most; ++i) {
    const std::int32_t from = *match + i;
    out.push_back(from < num_tokens ? tokens[static_cast<std::size_t>(from)] : *(out.begin() + (from - num_tokens)));
  }
}

std::optional<std::int32_t> NgramDrafter::replace(int size, std::int32_t end, std::span<const std::int32_t> tokens) {
  Index& index = indices_[static_cast<std::size_t>(size - sizes_.min)];
  if (2 * (index.count + 1) > index.ends.size()) {
    Index larger;
    larger.ends.resize(std::max(kLeastPlaces, 2 * index.ends.size()));
    for (const std::int32_t old : index.ends) {
      if (old != 0) insert(larger, size, old, tokens);
    }
    index = std::move(larger);
  }
  std::int32_t& entry = place(index, size, end, tokens);
  const std::int32_t before = entry;
  entry = end;
  if (before != 0) return before;
  ++index.count;
  return std::nullopt;
}

void NgramDrafter::insert(Index& index, int size, std::int32_t end, std::span<const std::int32_t> tokens) {
  place(index, size, end, tokens) = end;
  ++index.count;
}

// The entry of the n-gram that ends at `end`, or the empty place for it.
std::int32_t& NgramDrafter::place(Index& index, int size, std::int32_t end, std::span<const std::int32_t> tokens) {
  const auto wanted = ngram_at(end, size, tokens);
  const std::size_t mask = index.ends.size() - 1;
  for (std::size_t at = hash(wanted) & mask;; at = (at + 1) & mask) {
    std::int32_t& entry = index.ends[at];
    if (entry == 0 || std::ranges::equal(ngram_at(entry, size, tokens), wanted)) return entry;
  }
}

}  // namespace tl
