#include "cpu/time_step.h"

#include <cstddef>
#include <cstdint>

#include "caches/kv_cache_size.h"

namespace tl {

std::vector<InstructionTime> time_step(CpuExecutor& executor, const TimedStepShape& timed, int repeats) {
  check_timed_step(executor, timed, repeats);
  const Manifest& manifest = executor.engine().manifest();
  const KvGeometry geometry = cache_geometry(manifest);
  const int length = timed.past_len + timed.num_tokens;
  const int blocks_per_row = geometry.num_blocks_for(length);
  std::vector<std::int32_t> tokens, tables, last_rows;
  std::int32_t next_block = 0;
  for (int row = 0; row < timed.num_rows; ++row) {
    for (int i = 0; i < timed.num_tokens; ++i) tokens.push_back(timed.token(row, i, manifest.model.vocab_size));
    last_rows.push_back(static_cast<std::int32_t>(tokens.size()) - 1);
    for (int group = 0; group < geometry.num_groups(); ++group) {
      const int first = geometry.kind(group).first_needed(timed.past_len);
      const int end = geometry.kind(group).table_end(timed.past_len, length);
      for (int i = 0; i < blocks_per_row; ++i) {
        const bool is_used = first <= i && i < end;
        tables.push_back(is_used ? next_block : 0);
        if (is_used) next_block += geometry.blocks(group);
      }
    }
  }
  const std::vector<std::int32_t> seq_lens(static_cast<std::size_t>(timed.num_rows), timed.num_tokens);
  const std::vector<std::int32_t> past_lens(static_cast<std::size_t>(timed.num_rows), timed.past_len);
  return executor.time_step({.token_ids = tokens,
                             .seq_lens = seq_lens,
                             .past_lens = past_lens,
                             .block_tables = tables,
                             .blocks_per_row = blocks_per_row,
                             .logits_indices = last_rows,
                             .adapters = {},
                             .token_rows = {},
                             .received = {}},
                            repeats);
}

}  // namespace tl
