// Prompt lookup: tokens that followed an earlier occurrence of the last tokens may follow them again
// (https://github.com/apoorvumang/prompt-lookup-decoding).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "drafts/sequence_drafter.h"

namespace tl {

struct NgramSizes {
  int min = 2, max = 4;
};

constexpr int kMaxNgramSize = 16;

// Finds the latest earlier occurrence of the last `max` tokens, or else of fewer, down to `min`. Copies what follows
// it, even past the sequence's own end as in LZ77, so that a periodic text is continued with its period.
class NgramDrafter : public SequenceDrafter {
 public:
  // Throws ArgumentError unless 1 <= min <= max <= kMaxNgramSize.
  explicit NgramDrafter(const NgramSizes& sizes);
  void draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) override;

 private:
  // Where each n-gram of one size ended last: a hash table with linear probing. Entries are compared by the tokens they
  // refer to.
  struct Index {
    std::vector<std::int32_t> ends;  // 0: empty
    std::size_t count = 0;
  };

  // Records that an n-gram ends at `end`; returns where the same n-gram ended before.
  std::optional<std::int32_t> replace(int size, std::int32_t end, std::span<const std::int32_t> tokens);
  static void insert(Index& index, int size, std::int32_t end, std::span<const std::int32_t> tokens);
  static std::int32_t& place(Index& index, int size, std::int32_t end, std::span<const std::int32_t> tokens);

  NgramSizes sizes_;
  std::vector<Index> indices_;  // by size, from the smallest
  std::int32_t num_indexed_ = 0;
};

}  // namespace tl
