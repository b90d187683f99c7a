// What a scheduler is made for.
#pragma once

#include <cstdint>
#include <memory>

#include "caches/kv_cache_manager.h"
#include "drafts/drafter.h"
#include "schedule/step_pace.h"

namespace tl {

enum class CapacityPolicy : std::uint8_t {
  // Admits a request only if every block it can ever need is guaranteed.
  kGuaranteedNoEvict,
  // Admits a request while there are blocks for the next steps; if they run out, a request is preempted. (A beam search
  // would lose all its work, so it is admitted as under the other policy.)
  kMaxUtilization,
};

struct SchedulerConfig {
  CapacityPolicy policy = CapacityPolicy::kGuaranteedNoEvict;
  int max_batch_size = 0;              // the most sequences that run at once; a beam search counts as its beams
  int max_num_tokens = 0;              // the most tokens of one step
  int max_seq_len = 0;                 // the most tokens of a request, prompt and generated
  bool enable_chunked_context = true;  // a prompt may be spread over several steps
  int state_interval = 0;              // blocks of a prompt between states that are kept for others; 0: no interval
  int ageing_window = 64;              // see WaitQueue
  double step_seconds = 0;             // time limit of a step with chunked prompts; 0: none
  int least_prefill = StepPace::kLeastPrefill;
  int max_draft_len = 0;                  // the most drafts of a row
  std::shared_ptr<Drafter> drafter = {};  // null: no drafts
  bool paces_drafts = true;               // rows bring as many drafts as pay (draft_pace.h), not always the most
};

// Returns `config`. Throws std::invalid_argument if it contradicts itself, the cache, or the number of the executor's
// slots.
SchedulerConfig checked(const SchedulerConfig& config, const KvManagerConfig& cache, int num_slots);

}  // namespace tl
