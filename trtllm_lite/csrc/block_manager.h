// Which cache blocks belong to which sequence.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tl {

// Hands out `num_blocks` blocks of `tokens_per_block` tokens. Every block is either free or in one table. Not
// thread-safe.
class BlockManager {
 public:
  // Throws LimitError unless both are at least 1.
  BlockManager(std::int64_t num_blocks, std::int64_t tokens_per_block);

  // Grows the table of `seq_id` (a new one if it has none) until it can hold `num_tokens` tokens in all; never shrinks
  // it. Throws LimitError, and changes nothing, if there are not enough free blocks.
  void reserve(std::int64_t seq_id, std::int64_t num_tokens);

  // Frees all blocks of `seq_id`. Throws LimitError if it has none.
  void release(std::int64_t seq_id);

  // Block numbers in order of position. Throws LimitError if `seq_id` has none.
  const std::vector<std::int32_t>& block_table(std::int64_t seq_id) const;

  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_blocks() const { return num_blocks_; }
  std::int64_t tokens_per_block() const { return tokens_per_block_; }

  // Throws std::logic_error if a block is lost, or in two places; such a bug would mix up the text of two users.
  void check_integrity() const;

 private:
  std::int64_t num_blocks_;
  std::int64_t tokens_per_block_;
  std::vector<std::int32_t> free_;  // a stack: blocks freed last, likely still in a processor cache, are used first
  std::unordered_map<std::int64_t, std::vector<std::int32_t>> tables_;
};

}  // namespace tl
