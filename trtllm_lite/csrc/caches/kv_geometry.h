// Computes which blocks of the KV cache a sequence needs.
//
// The layers of a model form cache groups. Layers of a group have the same attention window and share a block table.
// Blocks are equally large in all groups, so that one pool serves all. A group without a window needs every block of a
// sequence; one with a window needs the blocks within the window of the oldest token still to be computed. A model
// without a cache (an encoder) has no groups, and its sequences need no blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tl {

class KvGeometry {
 public:
  KvGeometry() = default;
  // `windows`: the window of each group in tokens; 0 for none. A step computes at most `max_step_tokens` of a sequence.
  KvGeometry(int tokens_per_block, std::vector<int> windows, int max_step_tokens)
      : tokens_per_block_(tokens_per_block), windows_(std::move(windows)), max_step_tokens_(max_step_tokens) {
    const auto is_negative = [](int window) { return window < 0; };
    if (tokens_per_block < 1 || std::ranges::any_of(windows_, is_negative) || max_step_tokens < 1) {
      throw std::invalid_argument(
          "KV cache: expected tokens_per_block >= 1, cache groups with windows >= 0 and max_step_tokens >= 1, found " +
          std::to_string(tokens_per_block) + ", " + std::to_string(windows_.size()) + " groups and " +
          std::to_string(max_step_tokens));
    }
    has_windows_ = std::ranges::any_of(windows_, [](int window) { return window > 0; });
  }

  int tokens_per_block() const { return tokens_per_block_; }
  int num_groups() const { return static_cast<int>(windows_.size()); }
  bool has_windows() const { return has_windows_; }
  bool is_windowed(int group) const { return windows_[static_cast<std::size_t>(group)] > 0; }

  int num_blocks_for(int num_tokens) const {
    return static_cast<int>((std::int64_t{num_tokens} + tokens_per_block_ - 1) / tokens_per_block_);
  }

  // Index of the first block of the group's table that is needed once the next token to compute is at `position`: a
  // query at position p attends positions > p - window.
  int first_needed(int group, int position) const {
    const int window = windows_[static_cast<std::size_t>(group)];
    return window == 0 ? 0 : std::max(position - window + 1, 0) / tokens_per_block_;
  }

  // Length of the group's table once a sequence of `length` tokens has the blocks to grow to `num_tokens`. In a
  // windowed group, only the blocks for the next step count.
  int table_end(int group, int length, int num_tokens) const {
    const int end = num_blocks_for(num_tokens);
    if (!is_windowed(group)) return end;
    return std::min(end, first_needed(group, length) + most_at_once(group, num_tokens - length, num_tokens));
  }

  // Blocks that a sequence of `length` tokens holds once it has those to grow to `num_tokens`.
  int num_needed(int length, int num_tokens) const {
    int num_blocks = 0;
    for (int group = 0; group < num_groups(); ++group) {
      num_blocks += table_end(group, length, num_tokens) - first_needed(group, length);
    }
    return num_blocks;
  }

  // The most blocks that a sequence can hold at once from now on, given that `num_remaining` known tokens are still to
  // be computed and it grows to at most `max_length`.
  int most_blocks(int num_remaining, int max_length) const {
    int num_blocks = 0;
    for (int group = 0; group < num_groups(); ++group) num_blocks += most_at_once(group, num_remaining, max_length);
    return num_blocks;
  }

  // The most blocks that a beam search can hold; the prompt's sequence stays open. Beams share the blocks
  // of the prompt; those of a windowed group count once for each beam, because each beam leaves them at its own time.
  int most_blocks_of_search(int num_prompt, int max_length, int num_beams) const {
    const int own = num_blocks_for(max_length) - num_prompt / tokens_per_block_;
    int num_blocks = 0;
    for (int group = 0; group < num_groups(); ++group) {
      num_blocks += most_at_once(group, num_prompt, num_prompt);
      num_blocks += num_beams * (is_windowed(group) ? most_at_once(group, 1, max_length) : own);
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

  // The most blocks of a group that a sequence can hold at once; see most_blocks().
  int most_at_once(int group, int num_remaining, int max_length) const {
    const int whole = num_blocks_for(max_length);
    if (!is_windowed(group)) return whole;
    const std::int64_t num_positions =
        std::int64_t{windows_[static_cast<std::size_t>(group)]} - 1 + std::clamp(num_remaining, 1, max_step_tokens_);
    return static_cast<int>(
        std::min<std::int64_t>(whole, (num_positions + tokens_per_block_ - 2) / tokens_per_block_ + 1));
  }

  int tokens_per_block_ = 1;
  std::vector<int> windows_{0};
  int max_step_tokens_ = std::numeric_limits<int>::max();
  bool has_windows_ = false;
};

}  // namespace tl
