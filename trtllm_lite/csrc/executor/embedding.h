// The results of an encoder's rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "executor/step.h"

namespace tl {

struct EmbeddingOutputs final : RowOutputs {
  std::vector<float> values;  // [embedding_size]
};

// Writes the result of a row that was computed as `values`.
inline void set_embedding(RowResult& result, std::span<const float> values) {
  result = {};
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) {
    result.error = "an embedding is not finite: convert the model with another --dtype, and build it again";
    return;
  }
  auto outputs = std::make_unique<EmbeddingOutputs>();
  outputs->values.assign(values.begin(), values.end());
  result.outputs = std::move(outputs);
}

}  // namespace tl
