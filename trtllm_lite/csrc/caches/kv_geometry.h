// Computes which blocks of the KV cache a sequence needs, over all cache groups.
//
// Blocks are equally large in all groups, so that one pool serves all. A model without a cache (an encoder) has no
// groups, and its sequences need no blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "caches/cache_kind.h"

namespace tl {

class KvGeometry {
 public:
  KvGeometry() = default;
  // `windows`: the window of each group in tokens; 0 for none. A step computes at most `max_step_tokens` of a sequence.
  KvGeometry(int tokens_per_block, const std::vector<int>& windows, int max_step_tokens)
      : tokens_per_block_(tokens_per_block) {
    const auto is_negative = [](int window) { return window < 0; };
    if (tokens_per_block < 1 || std::ranges::any_of(windows, is_negative) || max_step_tokens < 1) {
      throw std::invalid_argument(
          "KV cache: expected tokens_per_block >= 1, cache groups with windows >= 0 and max_step_tokens >= 1, found " +
          std::to_string(tokens_per_block) + ", " + std::to_string(windows.size()) + " groups and " +
          std::to_string(max_step_tokens));
    }
    kinds_.clear();
    for (const int window : windows) kinds_.push_back(cache_kind(tokens_per_block, window, max_step_tokens));
    gives_back_ = std::ranges::any_of(kinds_, [](const auto& kind) { return kind->gives_back(); });
  }

  int tokens_per_block() const { return tokens_per_block_; }
  int num_groups() const { return static_cast<int>(kinds_.size()); }
  const CacheKind& kind(int group) const { return *kinds_[static_cast<std::size_t>(group)]; }
  // Whether sequences give back blocks of any group while they run.
  bool gives_back() const { return gives_back_; }

  int num_blocks_for(int num_tokens) const {
    return static_cast<int>((std::int64_t{num_tokens} + tokens_per_block_ - 1) / tokens_per_block_);
  }

  // Blocks that a sequence of `length` tokens holds once it has those to grow to `num_tokens`.
  int num_needed(int length, int num_tokens) const {
    int num_blocks = 0;
    for (const auto& kind : kinds_) num_blocks += kind->table_end(length, num_tokens) - kind->first_needed(length);
    return num_blocks;
  }

  // The most blocks that a sequence can hold at once from now on, given that `num_remaining` known tokens are still to
  // be computed and it grows to at most `max_length`.
  int most_blocks(int num_remaining, int max_length) const {
    int num_blocks = 0;
    for (const auto& kind : kinds_) num_blocks += kind->most_at_once(num_remaining, max_length);
    return num_blocks;
  }

  // The most blocks that a beam search can hold; the prompt's sequence stays open.
  int most_blocks_of_search(int num_prompt, int max_length, int num_beams) const {
    int num_blocks = 0;
    for (const auto& kind : kinds_) {
      num_blocks += kind->most_at_once(num_prompt, num_prompt) + num_beams * kind->most_of_beam(num_prompt, max_length);
    }
    return num_blocks;
  }

  // The most blocks that a batch of sequences that grow to `max_length` can hold, if one prompt is computed at a time.
  std::int64_t most_blocks_of_batch(int batch_size, int max_length) const {
    return std::int64_t{batch_size - 1} * most_blocks(1, max_length) + most_blocks(max_length, max_length);
  }

  // The length of the longest sequence that fits `num_blocks`.
  int longest_sequence(int num_blocks) const {
    std::int64_t low = 0, high = kMaxLength;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (most_blocks(static_cast<int>(middle), static_cast<int>(middle)) <= num_blocks) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return static_cast<int>(low);
  }

 private:
  static constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;  // kMaxExtent: the most tokens of any sequence

  int tokens_per_block_ = 1;
  std::vector<std::shared_ptr<const CacheKind>> kinds_{cache_kind(1, 0, 1)};
  bool gives_back_ = false;
};

}  // namespace tl
