#include "schedule/decoder/lending.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

namespace tl {

void Lending::lend(int num_slabs) {
  const LentSlabs& lent = blocks_.cache().lent();
  const int found = num_slabs + num_wanted_ + lent.num_lent();
  if (num_slabs < 0 || found > lent.layout().max_lent) {
    throw std::logic_error("slabs of the KV cache's memory: expected at most " +
                           std::to_string(lent.layout().max_lent) + " that are lent, found " + std::to_string(found));
  }
  num_wanted_ += num_slabs;
  has_asked_ = false;
}

void Lending::go_on() {
  KvCacheManager& cache = blocks_.cache();
  while (num_wanted_ > 0) {
    if (!cache.lent().leaving()) {
      const std::optional<int> slab = cache.lent().choose(cache.device());
      if (!slab || cache.lent().num_present(*slab, cache.device()) > num_spare_blocks()) return;
      cache.begin_lending(*slab);
    }
    const std::optional<int> slab = cache.go_on_lending();
    if (!slab) return;
    lent_.push_back(*slab);
    --num_wanted_;
  }
}

void Lending::give_back(int slab) {
  blocks_.cache().give_back(slab);
  has_asked_ = false;
}

int Lending::num_spare_slabs() const {
  const int num_blocks = blocks_.cache().lent().max_blocks_of_slab();
  return num_blocks == 0 ? 0 : std::max(num_spare_blocks(), 0) / num_blocks;
}

void Lending::miss_blocks() {
  if (blocks_.cache().lent().num_lent() == 0 || has_asked_) return;
  short_of_blocks_ = has_asked_ = true;
}

// Blocks that can be lent without a preemption in the next steps.
int Lending::num_spare_blocks() const {
  return blocks_.num_free(true) - running_.size() * blocks_.geometry().num_growing_groups();
}

}  // namespace tl
