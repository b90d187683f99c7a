// The part of the Scheduler that lends memory of the KV cache to other uses of the device.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "schedule/scheduler.h"

namespace tl {

void Scheduler::lend(int num_slabs) {
  const LentSlabs& lent = cache_.lent();
  const int found = num_slabs + num_wanted_slabs_ + lent.num_lent();
  if (num_slabs < 0 || found > lent.layout().max_lent) {
    throw std::logic_error("slabs of the KV cache's memory: expected at most " +
                           std::to_string(lent.layout().max_lent) + " that are lent, found " + std::to_string(found));
  }
  num_wanted_slabs_ += num_slabs;
  has_asked_ = false;
}

void Scheduler::lend_slabs() {
  while (num_wanted_slabs_ > 0) {
    if (!cache_.lent().leaving()) {
      const std::optional<int> slab = cache_.lent().choose(cache_.device());
      if (!slab || cache_.lent().num_present(*slab, cache_.device()) > num_spare_blocks()) return;
      cache_.begin_lending(*slab);
    }
    const std::optional<int> slab = cache_.go_on_lending();
    if (!slab) return;
    lent_.push_back(*slab);
    --num_wanted_slabs_;
  }
}

// Blocks that can be lent without a preemption in the next steps.
int Scheduler::num_spare_blocks() const {
  return num_free(true) - static_cast<int>(std::ssize(running_)) * cache_.geometry().num_growing_groups();
}

int Scheduler::num_spare_slabs() const {
  const int num_blocks = cache_.lent().max_blocks_of_slab();
  return num_blocks == 0 ? 0 : std::max(num_spare_blocks(), 0) / num_blocks;
}

void Scheduler::give_back(int slab) {
  cache_.give_back(slab);
  has_asked_ = false;
}

// Asks for lent memory, once until some comes back or more is lent.
void Scheduler::miss_blocks() {
  if (cache_.lent().num_lent() == 0 || has_asked_) return;
  short_of_blocks_ = has_asked_ = true;
}

}  // namespace tl
