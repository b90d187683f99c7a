// Computes which blocks of the KV cache a sequence needs, over all cache groups.
//
// Blocks are equally large in all groups, so that one pool serves all. What is larger, a state, takes a run of
// consecutive blocks, which begins at a multiple of its length. All numbers of blocks here count the blocks of runs. A
// model without a cache (an encoder) has no groups, and its sequences need no blocks.
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
  // A step computes at most `max_step_tokens` of a sequence.
  KvGeometry(int tokens_per_block, const std::vector<CacheSpec>& groups, int max_step_tokens)
      : tokens_per_block_(tokens_per_block) {
    const auto is_wrong = [](const CacheSpec& group) {
      return group.blocks < 1 || (group.window > 0) != (group.kind == CacheKindName::kWindow);
    };
    if (tokens_per_block < 1 || std::ranges::any_of(groups, is_wrong) || max_step_tokens < 1) {
      throw std::invalid_argument(
          "KV cache: expected tokens_per_block >= 1, cache groups of at least one block, windows > 0 in groups of that "
          "kind alone, and max_step_tokens >= 1, found " +
          std::to_string(tokens_per_block) + ", " + std::to_string(groups.size()) + " groups and " +
          std::to_string(max_step_tokens));
    }
    groups_.clear();
    for (const CacheSpec& group : groups) {
      groups_.push_back({make_cache_kind(group, tokens_per_block, max_step_tokens), group.blocks});
      run_ = std::max(run_, group.blocks);
    }
    gives_back_ = std::ranges::any_of(groups_, [](const Group& group) { return group.kind->gives_back(); });
    has_states_ = std::ranges::any_of(groups_, [](const Group& group) { return group.kind->sums_up(); });
    can_fork_ = std::ranges::all_of(groups_, [](const Group& group) { return group.kind->can_fork(); });
    num_growing_ =
        static_cast<int>(std::ranges::count_if(groups_, [](const Group& group) { return group.kind->grows(); }));
    if (std::ranges::count_if(groups, [](const CacheSpec& group) { return group.blocks > 1; }) > 1) {
      throw std::invalid_argument(
          "KV cache: expected one cache group at most that takes runs of blocks, found several");
    }
  }

  int tokens_per_block() const { return tokens_per_block_; }
  int num_groups() const { return static_cast<int>(groups_.size()); }
  const CacheKind& kind(int group) const { return *groups_[static_cast<std::size_t>(group)].kind; }
  // The number of consecutive blocks that an entry of a group's tables takes, and the longest of all groups.
  int blocks(int group) const { return groups_[static_cast<std::size_t>(group)].blocks; }
  int run() const { return run_; }
  // Whether the entries of any group sum up all tokens so far.
  bool has_states() const { return has_states_; }
  // Whether the last tokens of a sequence can be taken back.
  bool can_fork() const { return can_fork_; }
  // The number of groups of which a sequence needs more blocks the longer it is.
  int num_growing_groups() const { return num_growing_; }
  // Whether sequences give back blocks of any group while they run.
  bool gives_back() const { return gives_back_; }

  int num_blocks_for(int num_tokens) const {
    return static_cast<int>((std::int64_t{num_tokens} + tokens_per_block_ - 1) / tokens_per_block_);
  }

  // Blocks that a sequence of `length` tokens holds once it has those to grow to `num_tokens`.
  int num_needed(int length, int num_tokens) const {
    int num_blocks = 0;
    for (const auto& [kind, blocks] : groups_) {
      num_blocks += blocks * (kind->table_end(length, num_tokens) - kind->first_needed(length));
    }
    return num_blocks;
  }

  // The most blocks that a sequence can hold at once from now on, given that `num_remaining` known tokens are still to
  // be computed and it grows to at most `max_length`.
  int most_blocks(int num_remaining, int max_length) const {
    int num_blocks = 0;
    for (const auto& [kind, blocks] : groups_) num_blocks += blocks * kind->most_at_once(num_remaining, max_length);
    return num_blocks;
  }

  // The most blocks that a beam search can hold; the prompt's sequence stays open.
  int most_blocks_of_search(int num_prompt, int max_length, int num_beams) const {
    int num_blocks = 0;
    for (const auto& [kind, blocks] : groups_) {
      num_blocks += blocks * (kind->most_at_once(num_prompt, num_prompt) +
                              num_beams * kind->most_of_beam(num_prompt, max_length));
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

  struct Group {
    std::shared_ptr<const CacheKind> kind;
    int blocks;
  };

  int tokens_per_block_ = 1;
  std::vector<Group> groups_{{make_cache_kind({}, 1, 1), 1}};
  int run_ = 1, num_growing_ = 1;
  bool gives_back_ = false, has_states_ = false, can_fork_ = true;
};

}  // namespace tl
