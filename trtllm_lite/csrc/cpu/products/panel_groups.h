// Groups of a few rows (row_groups.h) times panels, by vector instructions. A task has some panels of every group's
// weight.
#pragma once

#include <string.h>

#include <cstdint>

#include "cpu/products/panel_gemm.h"
#include "cpu/products/row_groups.h"

namespace tl::TL_ISA {

// The most rows that fit in the shared scratch memory with their sums over blocks.
TL_INLINE std::int64_t most_rows_of_groups(std::int64_t depth, const PackedWeight& w) {
  const std::int64_t blocks = w.offset.data == nullptr ? 0 : w.offset.shape[w.offset.rank - 1];
  return static_cast<std::int64_t>(kSharedScratchBytes / sizeof(float)) / (depth + blocks);
}

// Copies the rows contiguously into the shared scratch memory, followed by their sums.
TL_INLINE RowsOfX gather(const RowGroups& x, std::int64_t depth, const PackedWeight& w, ThreadPool* pool) {
  auto* rows = static_cast<float*>(pool->shared_scratch());
  float* sums = rows + x.num_rows * depth;
  const std::int64_t blocks = w.offset.data == nullptr ? 0 : w.offset.shape[w.offset.rank - 1];
  for (std::int64_t row = 0; row < x.num_rows; ++row) {
    memcpy(rows + row * depth, x.rows[row], static_cast<std::size_t>(depth) * sizeof(float));
    if (blocks > 0) sum_blocks(rows + row * depth, depth / blocks, blocks, sums + row * blocks);
  }
  return {rows, 0, x.num_rows, depth, blocks > 0 ? sums : nullptr};
}

template <typename Weight, typename Scales>
void multiply_gathered_groups(const RowGroups& x, std::int64_t depth, const PackedWeight& w, std::int64_t panels,
                              ThreadPool* pool, const Epilogue& epilogue) {
  const RowsOfX rows = gather(x, depth, w, pool);
  const std::int64_t tasks = streaming_tasks(panels, pool->num_threads(), kMostStreams<Weight>);
  pool->parallel_for(tasks, [&](std::int64_t task, int thread) {
    const std::int64_t first = task * panels / tasks, count = (task + 1) * panels / tasks - first;
    auto* scratch = static_cast<PanelScratch*>(pool->scratch(thread));
    for (int i = 0; i < x.count; ++i) {
      const RowGroup& group = x.groups[i];
      PanelTask<Weight, Scales>{rows, w, group.first, group.rows, group.panel + first, count, scratch}.run();
      epilogue(scratch->sums, group.first, group.rows, first, count);
    }
  });
}

// Calls `epilogue` for all rows of all groups and the `panels` panels of each.
inline void multiply_groups(const RowGroups& x, std::int64_t depth, const PackedWeight& w, std::int64_t panels,
                            ThreadPool* pool, const Epilogue& epilogue) {
  with_weight_type(w, [&](auto weight, auto scales) {
    multiply_gathered_groups<decltype(weight), decltype(scales)>(x, depth, w, panels, pool, epilogue);
  });
}

}  // namespace tl::TL_ISA
