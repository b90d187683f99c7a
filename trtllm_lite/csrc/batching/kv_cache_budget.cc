#include "batching/kv_cache_budget.h"

#include <algorithm>
#include <limits>
#include <string>

#include "errors.h"

namespace tl {

int num_kv_blocks(const KvCacheBudget& budget) {
  if (!(budget.free_memory_fraction > 0 && budget.free_memory_fraction <= 1)) {
    throw LimitError("expected free_gpu_memory_fraction above 0 and at most 1, found " +
                     std::to_string(budget.free_memory_fraction));
  }
  const std::int64_t per_request = (budget.max_seq_len + budget.tokens_per_block - 1) / budget.tokens_per_block;
  const std::int64_t demand = per_request * budget.max_batch_size;
  const double share = budget.free_memory_fraction * static_cast<double>(std::max<std::int64_t>(budget.free_bytes, 0));
  const auto affordable = static_cast<std::int64_t>(share / static_cast<double>(budget.bytes_per_block));
  const std::int64_t cap = budget.max_tokens.value_or(std::numeric_limits<std::int64_t>::max());
  const std::int64_t capped = std::max<std::int64_t>(cap, 0) / budget.tokens_per_block;
  const std::int64_t num_blocks = std::min({demand, affordable, capped, std::int64_t{1} << 30});
  if (num_blocks < per_request) {
    const bool by_cap = capped <= affordable;
    throw LimitError("expected KV cache memory for one request of max_seq_len (" + std::to_string(budget.max_seq_len) +
                     ") tokens, that is " + std::to_string(per_request * budget.bytes_per_block) + " bytes, found " +
                     (by_cap ? "max_tokens (" + std::to_string(cap) + "): raise it"
                             : std::to_string(static_cast<std::int64_t>(share)) +
                                   " bytes: raise free_gpu_memory_fraction or free memory") +
                     ", or lower max_seq_len to " + std::to_string(num_blocks * budget.tokens_per_block));
  }
  return static_cast<int>(num_blocks);
}

}  // namespace tl
