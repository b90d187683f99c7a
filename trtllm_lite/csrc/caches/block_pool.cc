#include "caches/block_pool.h"

#include <algorithm>
#include <bit>
#include <ranges>
#include <stdexcept>
#include <string>
#include <utility>

namespace tl {

BlockPool::BlockPool(int num_blocks, int run)
    : blocks_(num_blocks + 1),
      free_(num_blocks / 64 + 1),
      free_words_(free_.size() / 64 + 1),
      run_(run),
      ready_of_run_(run > 1 ? num_blocks / run : 0),
      free_of_run_(ready_of_run_.size()),
      last_ready_of_run_(ready_of_run_.size()) {
  blocks_.back().prev = blocks_.back().next = num_blocks;
  for (int block = 0; block < num_blocks; ++block) put_free(block);
}

std::int32_t BlockPool::allocate() {
  if (num_ready() == 0) return kNoBlock;
  const std::int32_t block = num_free_ > 0 ? highest_free() : blocks_.back().next;
  take(block);
  return block;
}

std::int32_t BlockPool::allocate_run() {
  if (num_ready_runs_ == 0) return kNoBlock;
  const std::int32_t first = next_run() * run_;
  for (std::int32_t block = first; block < first + run_; ++block) take(block);
  return first;
}

// The number of the run to allocate next; one is ready. A run has old and new cached blocks: only if the newest is old,
// nothing is lost that others are about to look for.
std::int32_t BlockPool::next_run() const {
  const auto free = std::ranges::find(free_of_run_, run_);
  if (free != free_of_run_.end()) return static_cast<std::int32_t>(free - free_of_run_.begin());
  std::int32_t best = kNoBlock;
  for (std::int32_t run = 0; run < std::ssize(ready_of_run_); ++run) {
    const auto at = static_cast<std::size_t>(run);
    if (ready_of_run_[at] != run_) continue;
    if (best == kNoBlock || last_ready_of_run_[at] < last_ready_of_run_[static_cast<std::size_t>(best)]) best = run;
  }
  return best;
}

// Takes a block that is ready.
void BlockPool::take(std::int32_t block) {
  if (blocks_[block].place == Place::kEvictable) {
    remove_evictable(block);
  } else {
    remove_free(block);
  }
  blocks_[block].refcount = 1;
  blocks_[block].place = Place::kReferenced;
  ++num_referenced_;
}

// Single blocks are taken from the end, and runs from the beginning, so that runs stay whole.
std::int32_t BlockPool::highest_free() const {
  const auto highest = [](std::uint64_t bits) { return 63 - std::countl_zero(bits); };
  const auto group =
      std::ranges::find_if(std::views::reverse(free_words_), [](std::uint64_t bits) { return bits != 0; });
  const auto last = static_cast<std::size_t>(free_words_.rend() - group - 1);
  const std::size_t word = last * 64 + static_cast<std::size_t>(highest(free_words_[last]));
  return static_cast<std::int32_t>(word * 64) + highest(free_[word]);
}

void BlockPool::put_free(std::int32_t block) {
  const auto word = static_cast<std::size_t>(block / 64);
  free_[word] |= std::uint64_t{1} << block % 64;
  free_words_[word / 64] |= std::uint64_t{1} << word % 64;
  ++num_free_;
  blocks_[block].place = Place::kFree;
  count_ready(block, 1, true);
}

void BlockPool::remove_free(std::int32_t block) {
  const auto word = static_cast<std::size_t>(block / 64);
  free_[word] &= ~(std::uint64_t{1} << block % 64);
  if (free_[word] == 0) free_words_[word / 64] &= ~(std::uint64_t{1} << word % 64);
  --num_free_;
  count_ready(block, -1, true);
}

void BlockPool::count_ready(std::int32_t block, int change, bool is_free) {
  if (run_ == 1) return;
  const auto run = static_cast<std::size_t>(block / run_);
  if (run >= ready_of_run_.size()) return;  // the blocks after the last whole run
  num_ready_runs_ -= ready_of_run_[run] == run_;
  ready_of_run_[run] += change;
  num_ready_runs_ += ready_of_run_[run] == run_;
  if (is_free) free_of_run_[run] += change;
  if (change > 0) last_ready_of_run_[run] = ++num_made_ready_;
}

void BlockPool::retain(std::int32_t block) {
  Block& b = blocks_[block];
  if (b.refcount++ > 0) return;
  if (!b.cached) throw std::logic_error("retained block " + std::to_string(block) + " has no content");
  if (b.place == Place::kEvictable) remove_evictable(block);
  ++b.releases;
  b.place = Place::kReferenced;
  ++num_referenced_;
}

void BlockPool::remove(std::int32_t block) {
  if (blocks_[block].place != Place::kFree) {
    throw std::logic_error("removed block " + std::to_string(block) + " is not free");
  }
  remove_free(block);
  blocks_[block].place = Place::kAbsent;
  ++num_absent_;
}

void BlockPool::restore(std::int32_t block) {
  if (!is_absent(block)) throw std::logic_error("restored block " + std::to_string(block) + " is there");
  put_free(block);
  --num_absent_;
}

void BlockPool::release(std::int32_t block, std::uint64_t last_step) {
  Block& b = blocks_[block];
  if (b.refcount <= 0) throw std::logic_error("released block " + std::to_string(block) + " has no reference");
  b.last_step = std::max(b.last_step, last_step);
  if (--b.refcount > 0) return;
  --num_referenced_;
  // A block waits behind earlier waiting blocks, so that the evictable list stays in order of release.
  if (b.last_step <= ended_ && in_flight_.empty()) {
    settle(block);
  } else {
    b.place = Place::kInFlight;
    in_flight_.push_back({block, b.releases, b.last_step});
  }
}

void BlockPool::hold_back(std::int32_t block, std::uint64_t step) {
  Block& b = blocks_[block];
  b.last_step = std::max(b.last_step, step);
  if (b.place == Place::kFree) remove_free(block);
  if (b.place != Place::kFree && b.place != Place::kInFlight) return;
  b.place = Place::kInFlight;
  in_flight_.push_back({block, ++b.releases, b.last_step});
}

void BlockPool::set_cached(std::int32_t block, bool cached) {
  Block& b = blocks_[block];
  b.cached = cached;
  if (!cached && b.place == Place::kEvictable) {
    remove_evictable(block);
    settle(block);
  }
}

void BlockPool::step_ended(std::uint64_t step) {
  ended_ = step;
  while (!in_flight_.empty() && in_flight_.front().last_step <= step) {
    const Released released = in_flight_.front();
    in_flight_.pop_front();
    const Block& b = blocks_[released.block];
    if (b.place == Place::kInFlight && b.releases == released.releases) settle(released.block);
  }
}

void BlockPool::settle(std::int32_t block) {
  Block& b = blocks_[block];
  if (b.cached) {
    append_evictable(block);
  } else {
    put_free(block);
  }
}

void BlockPool::append_evictable(std::int32_t block) {
  const std::int32_t sentinel = num_blocks();
  Block& b = blocks_[block];
  b.prev = blocks_[sentinel].prev;
  b.next = sentinel;
  blocks_[b.prev].next = block;
  blocks_[sentinel].prev = block;
  b.place = Place::kEvictable;
  ++num_evictable_;
  count_ready(block, 1, false);
}

void BlockPool::remove_evictable(std::int32_t block) {
  const Block& b = blocks_[block];
  blocks_[b.prev].next = b.next;
  blocks_[b.next].prev = b.prev;
  --num_evictable_;
  count_ready(block, -1, false);
}

void BlockPool::check_integrity() const {
  const auto check = [](bool ok, const char* what, std::int32_t block) {
    if (!ok) throw std::logic_error(std::string("block pool: ") + what + ", block " + std::to_string(block));
  };
  std::vector<int> seen(num_blocks(), 0);
  int num_free = 0;
  for (std::int32_t block = 0; block < num_blocks(); ++block) {
    if ((free_[block / 64] >> block % 64 & 1) == 0) continue;
    check(blocks_[block].place == Place::kFree && !blocks_[block].cached, "a used block is among the free", block);
    check((free_words_[block / 4096] >> block / 64 % 64 & 1) != 0, "a free block cannot be found", block);
    ++num_free, ++seen[block];
  }
  check(num_free == num_free_, "free blocks miscounted", num_free);
  int num_evictable = 0;
  for (std::int32_t b = blocks_.back().next; b != num_blocks(); b = blocks_[b].next, ++num_evictable) {
    check(blocks_[b].place == Place::kEvictable && blocks_[b].cached, "evictable list holds another block", b);
    check(num_evictable <= num_blocks(), "evictable list is a loop", b);
    ++seen[b];
  }
  check(num_evictable == num_evictable_, "evictable blocks miscounted", num_evictable);
  for (const Released& r : in_flight_) {
    const Block& b = blocks_[r.block];
    if (b.place == Place::kInFlight && b.releases == r.releases) ++seen[r.block];
  }
  int num_referenced = 0, num_absent = 0;
  for (std::int32_t block = 0; block < num_blocks(); ++block) {
    const Block& b = blocks_[block];
    if (is_absent(block)) ++num_absent, ++seen[block];
    check((b.refcount > 0) == (b.place == Place::kReferenced) && b.refcount >= 0, "wrong reference count", block);
    if (b.refcount > 0) ++num_referenced, ++seen[block];
    check(seen[block] == 1, "not in exactly one place", block);
  }
  check(num_referenced == num_referenced_, "referenced blocks miscounted", num_referenced);
  check(num_absent == num_absent_, "absent blocks miscounted", num_absent);
  int num_ready_runs = 0;
  for (std::int32_t run = 0; run < std::ssize(ready_of_run_); ++run) {
    const auto first = blocks_.begin() + run * run_;
    const auto is_free = [](const Block& b) { return b.place == Place::kFree; };
    int num_ready = 0;
    for (std::int32_t block = run * run_; block < (run + 1) * run_; ++block) num_ready += is_ready(block);
    check(num_ready == ready_of_run_[run], "blocks of a run miscounted", run);
    check(std::count_if(first, first + run_, is_free) == free_of_run_[run], "free blocks of a run miscounted", run);
    num_ready_runs += ready_of_run_[run] == run_;
  }
  check(num_ready_runs == num_ready_runs_, "ready runs miscounted", num_ready_runs);
}

}  // namespace tl
