#include "caches/block_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tl {

BlockPool::BlockPool(int num_blocks) : blocks_(num_blocks + 1) {
  blocks_.back().prev = blocks_.back().next = num_blocks;
  free_.reserve(num_blocks);
  for (int block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

std::int32_t BlockPool::allocate() {
  std::int32_t block = kNoBlock;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (num_evictable_ > 0) {
    block = blocks_.back().next;
    remove_evictable(block);
  } else {
    return kNoBlock;
  }
  blocks_[block].refcount = 1;
  blocks_[block].place = Place::kReferenced;
  ++num_referenced_;
  return block;
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
    b.place = Place::kFree;
    free_.push_back(block);
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
}

void BlockPool::remove_evictable(std::int32_t block) {
  const Block& b = blocks_[block];
  blocks_[b.prev].next = b.next;
  blocks_[b.next].prev = b.prev;
  --num_evictable_;
}

void BlockPool::check_integrity() const {
  const auto check = [](bool ok, const char* what, std::int32_t block) {
    if (!ok) throw std::logic_error(std::string("block pool: ") + what + ", block " + std::to_string(block));
  };
  std::vector<int> seen(num_blocks(), 0);
  for (std::int32_t block : free_) {
    check(blocks_[block].place == Place::kFree && !blocks_[block].cached, "free list holds a used block", block);
    ++seen[block];
  }
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
  int num_referenced = 0;
  for (std::int32_t block = 0; block < num_blocks(); ++block) {
    const Block& b = blocks_[block];
    check((b.refcount > 0) == (b.place == Place::kReferenced) && b.refcount >= 0, "wrong reference count", block);
    if (b.refcount > 0) ++num_referenced, ++seen[block];
    check(seen[block] == 1, "not in exactly one place", block);
  }
  check(num_referenced == num_referenced_, "referenced blocks miscounted", num_referenced);
}

}  // namespace tl
