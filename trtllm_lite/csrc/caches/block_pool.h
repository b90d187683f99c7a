// Reference-counted block ids. An id is handed out again only when no step in flight can still touch its memory.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace tl {

constexpr std::int32_t kNoBlock = -1;

class BlockPool {
 public:
  // Runs of `run` consecutive blocks, from multiples of it on, can be allocated together.
  explicit BlockPool(int num_blocks, int run = 1);

  int num_blocks() const { return static_cast<int>(blocks_.size()) - 1; }
  // The number of blocks that have memory.
  int num_present() const { return num_blocks() - num_absent_; }
  // The number of blocks that allocate() can return now: free ones, and cached ones that it may evict.
  int num_ready() const { return num_free_ + num_evictable_; }
  // The number of ready blocks and of blocks that become ready as the steps in flight end.
  int num_unreferenced() const { return num_blocks() - num_absent_ - num_referenced_; }
  int refcount(std::int32_t block) const { return blocks_[block].refcount; }

  // Returns a block with one reference; kNoBlock if none is ready. If no block is free, evicts the least recently
  // released cached block.
  std::int32_t allocate();
  // Returns the first block of a run of ready blocks, which have one reference then: the lowest of free blocks or, if
  // there is none, the run of which no block has been released for the longest time. kNoBlock if no run is ready.
  std::int32_t allocate_run();
  int num_ready_runs() const { return num_ready_runs_; }
  // The number of the ready run that the block belongs to; kNoBlock if its run is not ready.
  std::int32_t ready_run_of(std::int32_t block) const {
    const auto run = static_cast<std::size_t>(block / run_);
    return run < ready_of_run_.size() && ready_of_run_[run] == run_ ? block / run_ : kNoBlock;
  }
  // Adds a reference; an unreferenced block must be cached.
  void retain(std::int32_t block);
  // Takes away the memory of a ready block, which is not cached, or brings it back.
  void remove(std::int32_t block);
  void restore(std::int32_t block);
  bool is_absent(std::int32_t block) const { return blocks_[block].place == Place::kAbsent; }
  bool is_ready(std::int32_t block) const {
    return blocks_[block].place == Place::kFree || blocks_[block].place == Place::kEvictable;
  }
  // Drops a reference. `last_step` is the last step that may touch the block.
  void release(std::int32_t block, std::uint64_t last_step);
  // Notes that `step` touches a block, whether it has a reference or is free: it is not handed out again before the
  // step has ended.
  void hold_back(std::int32_t block, std::uint64_t step);
  // A cached block keeps its content while unreferenced, until allocate() needs it.
  void set_cached(std::int32_t block, bool cached);
  bool is_cached(std::int32_t block) const { return blocks_[block].cached; }
  // Notes that steps up to `step` have ended. Unreferenced blocks that they used last become ready.
  void step_ended(std::uint64_t step);

  // Throws std::logic_error unless every block is in exactly one place and every count is right.
  void check_integrity() const;

 private:
  enum class Place : std::uint8_t { kFree, kReferenced, kInFlight, kEvictable, kAbsent };
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
  void take(std::int32_t block);
  void put_free(std::int32_t block);
  void remove_free(std::int32_t block);
  std::int32_t highest_free() const;
  std::int32_t next_run() const;
  void count_ready(std::int32_t block, int change, bool is_free);
  void append_evictable(std::int32_t block);
  void remove_evictable(std::int32_t block);

  std::vector<Block> blocks_;              // the last one is the sentinel of the evictable list
  std::vector<std::uint64_t> free_;        // a bit for each block
  std::vector<std::uint64_t> free_words_;  // a bit for each word of free_ that has a bit
  int num_free_ = 0;
  const int run_;
  std::vector<int> ready_of_run_;  // the number of blocks of each run that are ready; empty for runs of one
  std::vector<int> free_of_run_;   // the number of blocks of each run that are free
  std::vector<std::uint64_t> last_ready_of_run_;  // when a block of each run was last made ready, as a count
  std::uint64_t num_made_ready_ = 0;
  int num_ready_runs_ = 0;
  std::deque<Released> in_flight_;
  std::uint64_t ended_ = 0;
  int num_referenced_ = 0;
  int num_evictable_ = 0;
  int num_absent_ = 0;
};

}  // namespace tl
