// The slabs of memory that the blocks of a cache lie in, and which of them are lent to another use of the device.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "caches/block_pool.h"
#include "executor/slab_layout.h"

namespace tl {

// A block is there as long as all slabs that it reaches into are. The first slab always stays: kernels may name block 0
// in place of blocks that they do not read. One slab at a time is on its way: its ready blocks are taken from the pool
// at once, the others as soon as they are ready.
class LentSlabs {
 public:
  LentSlabs(const SlabLayout& layout, int num_blocks);

  const SlabLayout& layout() const { return layout_; }
  // Slabs of which no byte lies behind the last block.
  int num_slabs() const { return static_cast<int>(states_.size()); }
  int num_lent() const { return num_lent_; }
  // The most blocks that one slab takes away, and all that may be lent at once.
  int max_blocks_of_slab() const;
  int max_absent() const { return layout_.max_lent * max_blocks_of_slab(); }
  // The first and the last block that reach into a slab.
  std::pair<std::int32_t, std::int32_t> blocks_of(int slab) const { return {first(slab), last(slab)}; }
  bool is_lent(int slab) const { return states_[static_cast<std::size_t>(slab)] == State::kLent; }
  // The slab on its way, and its blocks that are still in the pool.
  std::optional<int> leaving() const { return leaving_; }
  int num_leaving() const { return num_leaving_; }
  bool is_leaving(std::int32_t block) const {
    return leaving_ && block >= first(*leaving_) && block <= last(*leaving_);
  }

  // The slab that is best lent next: first the one that has to wait for the fewest blocks, of these the one with the
  // fewest cached blocks. None if all are lent.
  std::optional<int> choose(const BlockPool& pool) const;
  int num_present(int slab, const BlockPool& pool) const;
  // Sends a slab on its way. Nothing of its blocks may be cached, or become cached while it leaves: a block that other
  // sequences find again and again would never be free.
  void begin(int slab, const BlockPool& pool);
  // Removes the blocks of the slab on its way that are ready. Returns the slab if it has none left.
  std::optional<int> go_on(BlockPool& pool);
  // Brings back a lent slab, and the blocks that it completes.
  void give_back(int slab, BlockPool& pool);

 private:
  enum class State : std::uint8_t { kHome, kLeaving, kLent };

  std::int32_t first(std::int64_t slab) const {
    return static_cast<std::int32_t>(slab * layout_.slab_bytes / layout_.block_bytes);
  }
  std::int32_t last(std::int64_t slab) const {
    return static_cast<std::int32_t>(((slab + 1) * layout_.slab_bytes - 1) / layout_.block_bytes);
  }
  bool is_whole(std::int64_t block) const;
  int end_leaving();

  SlabLayout layout_;
  std::vector<State> states_;
  std::optional<int> leaving_;
  int num_lent_ = 0, num_leaving_ = 0;
};

}  // namespace tl
