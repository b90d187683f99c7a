// The layout of a step's inputs in the one buffer that is copied to the device. It is packed by the step's own extents:
// the inputs of a step of one token are about a kilobyte.
#pragma once

#include <array>
#include <cstddef>

#include "engine/records.h"

namespace tl::cuda {

struct InputLayout {
  std::array<std::size_t, kNumStepInputs> offsets{};
  std::size_t bytes = 0;

  InputLayout() = default;
  // `table_columns`: the row stride of block_tables; `token_row_bytes`: that of token_rows.
  InputLayout(const Extents& extents, std::int64_t table_columns, std::int64_t token_row_bytes);
};

}  // namespace tl::cuda
