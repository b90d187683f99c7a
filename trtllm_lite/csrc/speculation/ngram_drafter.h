// Prompt lookup: what followed the last tokens where they stood before may follow them again
// (https://github.com/apoorvumang/prompt-lookup-decoding).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "speculation/sequence_drafter.h"

namespace tl {

struct NgramSizes {
  int min = 2, max = 4;
};

constexpr int kMaxNgramSize = 16;

// Of the last `max` tokens, else of fewer, down to `min`, the latest earlier occurrence counts. What follows it is
// copied, also over the sequence's own end, as in LZ77: so a text that repeats itself with any period goes on in it.
class NgramDrafter : public SequenceDrafter {
 public:
  // Throws ArgumentError unless 1 <= min <= max <= kMaxNgramSize.
  explicit NgramDrafter(const NgramSizes& sizes);
  void draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) override;

 private:
  // Where n-grams of one size ended last: a hash table with linear probing, whose entries are compared in the tokens.
  struct Index {
    std::vector<std::int32_t> ends;  // 0: empty
    std::size_t count = 0;
  };

  // Notes that an n-gram ends at `end`; returns where the same one ended before.
  std::optional<std::int32_t> replace(int size, std::int32_t end, std::span<const std::int32_t> tokens);
  static void insert(Index& index, int size, std::int32_t end, std::span<const std::int32_t> tokens);
  static std::int32_t& place(Index& index, int size, std::int32_t end, std::span<const std::int32_t> tokens);

  NgramSizes sizes_;
  std::vector<Index> indices_;  // by size, from the smallest
  std::int32_t num_indexed_ = 0;
};

}  // namespace tl
