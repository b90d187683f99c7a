// Reference-counted block ids. An id is handed out again only when no step in flight can still touch its memory.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace tl {

constexpr std::int32_t kNoBlock = -1;

class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int num_blocks() const { return static_cast<int>(blocks_.size()) - 1; }
  // The number of blocks that allocate() can return now: free ones, and cached ones that it may evict.
  int num_ready() const { return static_cast<int>(free_.size()) + num_evictable_; }
  // The number of ready blocks and of blocks that become ready as the steps in flight end.
  int num_unreferenced() const { return num_blocks() - num_referenced_; }
  int refcount(std::int32_t block) const { return blocks_[block].refcount; }

  // Returns a block with one reference; kNoBlock if none is ready. If no block is free, evicts the least recently
  // released cached block.
  std::int32_t allocate();
  // Adds a reference; an unreferenced block must be cached.
  void retain(std::int32_t block);
  // Drops a reference. `last_step` is the last step that may touch the block.
  void release(std::int32_t block, std::uint64_t last_step);
  // A cached block keeps its content while unreferenced, until allocate() needs it.
  void set_cached(std::int32_t block, bool cached);
  bool is_cached(std::int32_t block) const { return blocks_[block].cached; }
  // Notes that steps up to `step` have ended. Unreferenced blocks that they used last become ready.
  void step_ended(std::uint64_t step);

  // Throws std::logic_error unless every block is in exactly one place and every count is right.
  void check_integrity() const;

 private:
  enum class Place : std::uint8_t { kFree, kReferenced, kInFlight, kEvictable };
  struct Block {
    std::int32_t refcount = 0;
    std::int32_t prev = 0, next = 0;  // neighbours in the list of evictable blocks
    std::uint64_t last_step = 0;      // the last step that may touch it: the latest given to release()
    std::uint32_t releases = 0;       // distinguishes a valid entry of in_flight_ from one that retain() made obsolete
    Place place = Place::kFree;
    bool cached = false;
  };
  struct Released {
    std::int32_t block;
    std::uint32_t releases;
    std::uint64_t last_step;
  };

  void settle(std::int32_t block);
  void append_evictable(std::int32_t block);
  void remove_evictable(std::int32_t block);

  std::vector<Block> blocks_;  // the last one is the sentinel of the evictable list
  std::vector<std::int32_t> free_;
  std::deque<Released> in_flight_;
  std::uint64_t ended_ = 0;
  int num_referenced_ = 0;
  int num_evictable_ = 0;
};

}  // namespace tl
