#include "block_manager.h"

#include <stdexcept>
#include <string>

#include "errors.h"
#include "op_schema.h"

namespace tl {
namespace {

void expect_positive(const char* what, std::int64_t value) {
  if (value >= 1 && value < kMaxExtent) return;
  throw LimitError(std::string(what) + ": expected 1 to " + std::to_string(kMaxExtent - 1) + ", found " +
                   std::to_string(value) + "; pass the engine's own");
}

[[noreturn]] void fail_unknown(std::int64_t seq_id) {
  throw LimitError("sequence " + std::to_string(seq_id) + ": expected one with blocks, found none; reserve them first");
}

}  // namespace

BlockManager::BlockManager(std::int64_t num_blocks, std::int64_t tokens_per_block)
    : num_blocks_(num_blocks), tokens_per_block_(tokens_per_block) {
  expect_positive("num_blocks", num_blocks);
  expect_positive("tokens_per_block", tokens_per_block);
  free_.reserve(static_cast<std::size_t>(num_blocks));
  for (std::int64_t block = num_blocks; block-- > 0;) free_.push_back(static_cast<std::int32_t>(block));
}

void BlockManager::reserve(std::int64_t seq_id, std::int64_t num_tokens) {
  expect_positive("num_tokens", num_tokens);
  const auto found = tables_.find(seq_id);
  const auto held = found == tables_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
  const std::int64_t missing = (num_tokens + tokens_per_block_ - 1) / tokens_per_block_ - held;
  if (missing <= 0) return;
  if (missing > num_free()) {
    throw LimitError("KV cache: sequence " + std::to_string(seq_id) + " needs " + std::to_string(missing) +
                     " more blocks of " + std::to_string(tokens_per_block_) + " tokens, found " +
                     std::to_string(num_free()) + " free of " + std::to_string(num_blocks_) +
                     "; release finished sequences, or reserve a larger KV cache");
  }
  std::vector<std::int32_t>& table = tables_[seq_id];
  table.reserve(static_cast<std::size_t>(held + missing));
  for (std::int64_t i = 0; i < missing; ++i) {
    table.push_back(free_.back());
    free_.pop_back();
  }
}

void BlockManager::release(std::int64_t seq_id) {
  const auto found = tables_.find(seq_id);
  if (found == tables_.end()) fail_unknown(seq_id);
  free_.insert(free_.end(), found->second.rbegin(), found->second.rend());
  tables_.erase(found);
}

const std::vector<std::int32_t>& BlockManager::block_table(std::int64_t seq_id) const {
  const auto found = tables_.find(seq_id);
  if (found == tables_.end()) fail_unknown(seq_id);
  return found->second;
}

void BlockManager::check_integrity() const {
  std::vector<bool> seen(static_cast<std::size_t>(num_blocks_), false);
  std::int64_t count = 0;
  const auto visit = [&](const std::vector<std::int32_t>& blocks) {
    for (const std::int32_t block : blocks) {
      if (block < 0 || block >= num_blocks_ || seen[static_cast<std::size_t>(block)]) {
        throw std::logic_error("KV cache: block " + std::to_string(block) + " is unknown or in two places");
      }
      seen[static_cast<std::size_t>(block)] = true;
      ++count;
    }
  };
  visit(free_);
  for (const auto& [seq_id, table] : tables_) visit(table);
  if (count != num_blocks_) throw std::logic_error("KV cache: blocks are lost");
}

}  // namespace tl
