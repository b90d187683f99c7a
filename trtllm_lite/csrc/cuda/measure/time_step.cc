#include "cuda/measure/time_step.h"

#include "caches/kv_cache_size.h"
#include "cuda/step/step_packer.h"

namespace tl::cuda {

std::vector<InstructionTime> time_step(CudaExecutor& executor, const TimedStepShape& timed, int repeats,
                                       const std::vector<std::shared_ptr<Adapter>>& adapters) {
  check_timed_step(executor, timed, repeats);
  const Manifest& manifest = executor.engine().manifest();
  const KvGeometry geometry = cache_geometry(manifest);
  executor.device().make_current();

  HostSampling host(executor);
  SlotTables tables(executor.num_slots(), geometry.num_groups());
  StepBatch batch;
  std::int32_t next_block = 0;
  for (int row = 0; row < timed.num_rows; ++row) {
    const auto params = std::make_shared<RequestParams>();
    params->sampling.temperature = 0;
    if (!adapters.empty()) params->adapter = adapters[static_cast<std::size_t>(row) % adapters.size()];
    host.set_slot(row, params, {}, 0);
    for (int group = 0; group < geometry.num_groups(); ++group) {
      const int end = geometry.kind(group).table_end(timed.past_len, timed.past_len + timed.num_tokens);
      for (int i = geometry.kind(group).first_needed(timed.past_len); i < end; ++i) {
        batch.table_updates.push_back({row, group, i, next_block});
        next_block += geometry.blocks(group);
      }
    }
    batch.rows.push_back({.request = {},
                          .slot = row,
                          .request_slot = row,
                          .first_token = row * timed.num_tokens,
                          .num_tokens = timed.num_tokens,
                          .past_len = timed.past_len,
                          .num_generated = 0,
                          .outputs_from = 0,
                          .num_drafts = 0,
                          .sample = true});
    for (int i = 0; i < timed.num_tokens; ++i) {
      batch.token_ids.push_back(timed.token(row, i, manifest.model.vocab_size));
    }
  }
  StepPacker packer(executor, host);
  LogitsPlan logits;
  const StepShape shape = packer.plan(batch, logits);
  const PinnedBuffer inputs(executor.input_layout(executor.extents(shape)).bytes, "inputs of a step",
                            "time fewer rows");
  WrittenInputs written;
  tables.update(batch.table_updates);
  packer.pack(batch, shape, tables, logits.rows, inputs.data(), written);
  return executor.time_step(shape, inputs.data(), repeats);
}

}  // namespace tl::cuda
