// The results of an encoder's rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "executor/step.h"

namespace tl {

struct EmbeddingOutputs final : RowOutputs {
  std::vector<float> values;  // [rows, size]: one row for a text, some for an image
  std::size_t size = 0;
};

// Returns the rows that an encoder makes of a row of a step: one of a text, some of an image.
inline std::size_t num_embeddings(std::int64_t num_tokens, std::int64_t tokens_per_row) {
  return tokens_per_row == 0 ? 1 : static_cast<std::size_t>(num_tokens / tokens_per_row);
}

// Writes the result of a row that was computed as `values`, rows of `size`.
inline void set_embedding(RowResult& result, std::span<const float> values, std::size_t size) {
  result = {};
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    result.error = "an embedding is not finite: convert the model with another --dtype, and build it again";
    return;
  }
  auto outputs = std::make_unique<EmbeddingOutputs>();
  outputs->values.assign(values.begin(), values.end());
  outputs->size = size;
  result.outputs = std::move(outputs);
}

}  // namespace tl
