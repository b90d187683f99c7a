#include "cuda/measure/time_step.h"

#include <algorithm>

#include "cuda/step_packer.h"
#include "errors.h"
#include "kv_cache_size.h"

namespace tl::cuda {
namespace {

void check(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw LimitError(std::string(name) + ": expected " + std::to_string(low) + " to " + std::to_string(high) +
                   ", found " + std::to_string(value) + "; stay within what the engine was built for");
}

}  // namespace

std::vector<InstructionTime> time_step(CudaExecutor& executor, int num_rows, int num_tokens, int past_len, int repeats,
                                       const std::vector<std::shared_ptr<Adapter>>& adapters) {
  const Manifest& manifest = executor.engine().manifest();
  check("num_rows", num_rows, 1, manifest.limits.max_batch_size);
  check("num_tokens", num_tokens, 1, manifest.limits.max_num_tokens / num_rows);
  check("past_len", past_len, 0, manifest.limits.max_seq_len - num_tokens);
  check("repeats", repeats, 1, 1000);
  const KvGeometry geometry = cache_geometry(manifest);
  const std::int64_t num_blocks = geometry.num_needed(past_len, past_len + num_tokens);
  check("blocks", num_rows * num_blocks, 1, executor.num_blocks());
  executor.device().make_current();

  HostSampling host(executor);
  SlotTables tables(executor.num_slots(), geometry.num_groups());
  StepBatch batch;
  std::int32_t next_block = 0;
  for (int row = 0; row < num_rows; ++row) {
    const auto params = std::make_shared<RequestParams>();
    params->sampling.temperature = 0;
    if (!adapters.empty()) params->adapter = adapters[static_cast<std::size_t>(row) % adapters.size()];
    host.set_slot(row, params, {}, 0);
    for (int group = 0; group < geometry.num_groups(); ++group) {
      const int end = geometry.table_end(group, past_len, past_len + num_tokens);
      for (int i = geometry.first_needed(group, past_len); i < end; ++i) {
        batch.table_updates.push_back({row, group, i, next_block++});
      }
    }
    batch.rows.push_back({.request = {},
                          .slot = row,
                          .request_slot = row,
                          .first_token = row * num_tokens,
                          .num_tokens = num_tokens,
                          .past_len = past_len,
                          .num_generated = 0,
                          .outputs_from = 0,
                          .num_drafts = 0,
                          .sample = true});
    for (int i = 0; i < num_tokens; ++i) {
      batch.token_ids.push_back(static_cast<std::int32_t>((row * 7919 + i * 104729) % manifest.model.vocab_size));
    }
  }
  StepPacker packer(executor, host);
  LogitsPlan logits;
  const StepShape shape = packer.plan(batch, logits);
  const PinnedBuffer inputs(InputLayout(executor.extents(shape), executor.table_columns()).bytes, "inputs of a step",
                            "time fewer rows");
  WrittenInputs written;
  tables.update(batch.table_updates);
  packer.pack(batch, shape, tables, logits.rows, inputs.data(), written);
  return executor.time_step(shape, inputs.data(), repeats);
}

}  // namespace tl::cuda
