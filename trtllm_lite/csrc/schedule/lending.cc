// The part of the Scheduler that lends memory of the KV cache to other uses of the device.
#include <string>

#include "errors.h"
#include "schedule/scheduler.h"

namespace tl {

void Scheduler::lend(int num_slabs) {
  const LentSlabs& lent = cache_.lent();
  const int found = num_slabs + num_wanted_slabs_ + lent.num_lent();
  if (num_slabs < 0 || found > lent.layout().max_lent) {
    throw LimitError("slabs of the KV cache's memory: expected at most " + std::to_string(lent.layout().max_lent) +
                     " that are lent, found " + std::to_string(found) + "; give back others first");
  }
  num_wanted_slabs_ += num_slabs;
  has_asked_ = false;
}

void Scheduler::lend_slabs() {
  while (num_wanted_slabs_ > 0) {
    if (!cache_.lent().leaving()) {
      const auto kept = std::ssize(running_) * cache_.geometry().num_growing_groups();
      if (num_free(true) - cache_.cost_of_lending() < kept) return;
      cache_.begin_lending();
    }
    const std::optional<int> slab = cache_.go_on_lending();
    if (!slab) return;
    lent_.push_back(*slab);
    --num_wanted_slabs_;
  }
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
