// Groups of a few rows, each with a weight of its own, that are multiplied in one parallel region: the experts of a
// decode step.
#pragma once

#include <cstdint>

#include "cpu/simd/simd.h"

namespace tl {

// The most rows that a group may have: every instruction set multiplies so few by vector instructions.
constexpr int kMostRowsOfGroup = 4;
constexpr int kMostGroups = 32;

// Rows from number `first` on, times the panels of the weight from number `panel` on.
struct RowGroup {
  int first;
  int rows;
  std::int64_t panel;
};

struct RowGroups {
  const float* rows[kMostGroups];  // rows of x, ordered by group
  RowGroup groups[kMostGroups];
  int num_rows = 0;
  int count = 0;

  TL_INLINE bool has_room(std::int64_t more, std::int64_t most_rows) const {
    return num_rows + more <= (most_rows < kMostGroups ? most_rows : kMostGroups);
  }

  // Begins a group; its rows are added next.
  TL_INLINE void begin(std::int64_t size, std::int64_t panel) {
    groups[count++] = {num_rows, static_cast<int>(size), panel};
  }
  TL_INLINE void add(const float* row) { rows[num_rows++] = row; }
};

}  // namespace tl
