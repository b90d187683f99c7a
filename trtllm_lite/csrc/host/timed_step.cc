#include "host/timed_step.h"

#include "caches/kv_cache_size.h"
#include "errors.h"

namespace tl {
namespace {

void check(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw LimitError(std::string(name) + ": expected " + std::to_string(low) + " to " + std::to_string(high) +
                   ", found " + std::to_string(value) + "; stay within what the engine was built for");
}

}  // namespace

void check_timed_step(const DeviceExecutor& executor, const TimedStepShape& shape, int repeats) {
  const Manifest& manifest = executor.engine().manifest();
  check("num_rows", shape.num_rows, 1, manifest.limits.max_batch_size);
  check("num_tokens", shape.num_tokens, 1, manifest.limits.max_num_tokens / shape.num_rows);
  check("past_len", shape.past_len, 0, manifest.limits.max_seq_len - shape.num_tokens);
  check("repeats", repeats, 1, 1000);
  const std::int64_t num_blocks =
      cache_geometry(manifest).num_needed(shape.past_len, shape.past_len + shape.num_tokens);
  check("blocks", shape.num_rows * num_blocks, 1, executor.num_blocks());
}

}  // namespace tl
