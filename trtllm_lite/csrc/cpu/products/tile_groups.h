// Groups of a few rows (row_groups.h) times panels, with results bit-equal to those of tiles (tile_order.h).
#pragma once

#include <cstdint>

#include "cpu/products/rounded_rows.h"
#include "cpu/products/row_groups.h"
#include "cpu/products/tile_gemm.h"

namespace tl::TL_ISA::tiles {

static_assert(kMostRowsOfGroup == kFewRows);

// A few rows take 32-bit words where tiles take 16-bit ones.
TL_INLINE std::int64_t row_words(const Depth& depth) { return depth.all_tiles() * kDepth; }

TL_INLINE std::int64_t most_rows_of_groups(std::int64_t depth, const PackedWeight& w) {
  const Depth cut = depth_of(depth, w, false);
  const std::int64_t words = row_words(cut) + cut.planes * cut.blocks;
  return static_cast<std::int64_t>(kSharedScratchBytes / sizeof(float)) / words;
}

// The rows of a group among those of all groups. The rows are contiguous, followed by all sums and then all scales.
TL_INLINE RoundedRows rows_of(const RowGroups& x, const RowGroup& group, const Depth& depth, ThreadPool* pool) {
  auto* words = static_cast<float*>(pool->shared_scratch());
  float* sums = words + x.num_rows * row_words(depth) + group.first * depth.blocks;
  float* scales = depth.is_fixed() ? sums + x.num_rows * depth.blocks : nullptr;
  return {reinterpret_cast<BFloat16*>(words + group.first * row_words(depth)), sums, scales, 0, group.rows};
}

template <typename Weight>
TL_INLINE void round_group(const RowGroups& x, const RowGroup& group, const Depth& depth, const RoundedRows& to) {
  for (int row = 0; row < group.rows; ++row) {
    if constexpr (kElements<Weight> == 8) {
      if (depth.is_fixed()) {
        fix_row<Weight>(x.rows[group.first + row], row, depth, to);
        continue;
      }
    }
    round_row<Weight>(x.rows[group.first + row], row, depth, to);
  }
}

template <int kCount, typename Weight, typename Scales>
TL_INLINE void run_group(const RoundedRows& rows, const PackedWeight& w, const Depth& depth, std::int64_t panel,
                         std::int64_t panels, Scratch* scratch) {
  if constexpr (kCount < kMostRowsOfGroup) {
    if (rows.rows > kCount) return run_group<kCount + 1, Weight, Scales>(rows, w, depth, panel, panels, scratch);
  }
  TaskOfFew<Weight, Scales, kCount>{rows, depth, w, panel, panels, scratch->sums, scratch->partial}.run();
}

template <typename Weight, typename Scales>
void multiply_rounded_groups(const RowGroups& x, std::int64_t in_features, const PackedWeight& w, std::int64_t panels,
                             ThreadPool* pool, const Epilogue& epilogue) {
  const Depth depth = depth_of(in_features, w, false);
  for (int i = 0; i < x.count; ++i) {
    round_group<Weight>(x, x.groups[i], depth, rows_of(x, x.groups[i], depth, pool));
  }
  const std::int64_t tasks = streaming_tasks(panels, pool->num_threads(), kMaxStreams);
  pool->parallel_for(tasks, [&](std::int64_t task, int thread) {
    const std::int64_t first = task * panels / tasks, count = (task + 1) * panels / tasks - first;
    auto* scratch = static_cast<Scratch*>(pool->scratch(thread));
    for (int i = 0; i < x.count; ++i) {
      const RowGroup& group = x.groups[i];
      const RoundedRows rows = rows_of(x, group, depth, pool);
      run_group<1, Weight, Scales>(rows, w, depth, group.panel + first, count, scratch);
      epilogue(scratch->sums, group.first, group.rows, first, count);
    }
  });
}

// Calls `epilogue` for all rows of all groups and the `panels` panels of each.
inline void multiply_groups(const RowGroups& x, std::int64_t depth, const PackedWeight& w, std::int64_t panels,
                            ThreadPool* pool, const Epilogue& epilogue) {
  with_exact_weight_type(w, [&](auto weight, auto scales) {
    multiply_rounded_groups<decltype(weight), decltype(scales)>(x, depth, w, panels, pool, epilogue);
  });
}

}  // namespace tl::TL_ISA::tiles
