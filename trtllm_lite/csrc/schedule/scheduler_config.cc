#include "schedule/scheduler_config.h"

#include <stdexcept>
#include <string>

namespace tl {

SchedulerConfig checked(const SchedulerConfig& config, const KvManagerConfig& cache, int num_slots) {
  const auto check = [](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument("scheduler: " + what);
  };
  const std::string batch = "max_batch_size (" + std::to_string(config.max_batch_size) + ")";
  const std::string tokens = "max_num_tokens (" + std::to_string(config.max_num_tokens) + ")";
  const std::string length = "max_seq_len (" + std::to_string(config.max_seq_len) + ")";
  check(config.max_batch_size >= 1 && config.max_seq_len >= 2,
        batch + " must be at least 1, " + length + " at least 2");
  check(config.max_num_tokens >= config.max_batch_size, tokens + " must be at least " + batch);
  const KvGeometry geometry = with_steps_of(cache, config.max_num_tokens).geometry();
  check(config.max_draft_len >= 0 && config.max_draft_len <= kMaxDrafts,
        "max_draft_len (" + std::to_string(config.max_draft_len) + ") must be 0 to " + std::to_string(kMaxDrafts));
  const int num_needed = geometry.most_blocks(config.max_seq_len - 1, config.max_seq_len - 1);
  check(num_slots >= config.max_batch_size,
        "the executor's slots (" + std::to_string(num_slots) + ") must be at least " + batch);
  const int num_kept = cache.num_kept_blocks();
  check(num_needed <= num_kept, length + " takes " + std::to_string(num_needed) + " blocks of " +
                                    std::to_string(cache.tokens_per_block) + " tokens, and the KV cache has " +
                                    std::to_string(num_kept) + ": lower it or give the cache more memory");
  check(config.ageing_window >= 1, "ageing_window must be at least 1");
  check(config.enable_chunked_context || config.policy == CapacityPolicy::kGuaranteedNoEvict ||
            config.max_num_tokens >= config.max_seq_len,
        "without chunked context a preempted request is recomputed in one step, so " + tokens + " must be at least " +
            length + ": enable chunked context or use GUARANTEED_NO_EVICT");
  return config;
}

}  // namespace tl
