// How many blocks a KV cache gets.
#pragma once

#include <cstdint>
#include <optional>

namespace tl {

struct KvCacheBudget {
  std::int64_t bytes_per_block = 0;  // all layers, keys and values
  int tokens_per_block = 0;
  int max_batch_size = 0;
  int max_seq_len = 0;
  std::int64_t free_bytes = 0;               // memory left when weights and workspace are in place
  double free_memory_fraction = 0.9;         // of it, at most; 0 < fraction <= 1
  std::optional<std::int64_t> max_tokens{};  // a hard cap
};

// The least of three: what the engine can ever use at once, the share of free memory, and the cap. Throws LimitError
// naming what to change if that does not hold one request of max_seq_len, or if a number is out of range.
int num_kv_blocks(const KvCacheBudget& budget);

}  // namespace tl
