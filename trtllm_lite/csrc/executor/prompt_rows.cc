#include "executor/prompt_rows.h"

#include <algorithm>

namespace tl {

std::size_t PromptRows::first_from(std::int32_t position) const {
  return static_cast<std::size_t>(std::ranges::lower_bound(positions, position) - positions.begin());
}

}  // namespace tl
