// Rows of a prompt that take the place of its tokens: embeddings, or bytes from which the model makes them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tl {

struct PromptRows {
  static constexpr std::size_t kDigestBytes = 16;

  std::vector<std::int32_t> positions;  // positions of the prompt that have a row, in ascending order
  std::size_t row_bytes = 0;
  std::vector<std::byte> rows;  // [positions.size(), row_bytes], in the type of the module's port
  // A digest of each row, by which prefixes are told apart: its tokens are placeholders.
  std::string digests;

  // Returns the number of the first row at `position` or later.
  std::size_t first_from(std::int32_t position) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(positions, position) - positions.begin());
  }
  const std::byte* row(std::size_t number) const { return rows.data() + number * row_bytes; }
};

}  // namespace tl
