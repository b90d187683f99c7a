// What a scheduler has done so far, and how full it is.
#pragma once

#include <array>
#include <cstdint>

#include "caches/kv_cache_manager.h"
#include "executor/step.h"

namespace tl {

// Counts for rows that brought drafts.
struct DraftCounters {
  std::int64_t num_rows = 0;
  // Indexed by the draft's place in its row, from 0.
  std::array<std::int64_t, kMaxDrafts> num_drafted{}, num_accepted{};
};

struct SchedulerStats {
  int num_running = 0, num_waiting = 0;     // swapped-out requests count as waiting
  int num_blocks = 0, num_used_blocks = 0;  // used: referenced by running requests
  // Slabs of memory that blocks had, which have another use, and slabs that requests now leave unused.
  int num_lent_slabs = 0, num_spare_slabs = 0;
  int num_free_host_blocks = 0;
  KvCacheCounters kv;
  std::int64_t num_recompute_preemptions = 0, num_swap_preemptions = 0;
  std::int64_t num_recomputed_tokens = 0;  // scheduled again after a preemption
  std::int64_t num_scheduled_tokens = 0;   // includes drafts
  std::int64_t num_late_rows = 0;          // see StepExecutor::late_rows
  DraftCounters drafts;
};

}  // namespace tl
