#include "ranks/collectives.h"

#include <algorithm>
#include <cstring>

namespace tl {

void all_reduce(int rank, std::span<const RankOperands> ranks, std::int64_t num_elements) {
  const auto num_ranks = static_cast<std::int64_t>(ranks.size());
  const std::int64_t begin = num_elements * rank / num_ranks, end = num_elements * (rank + 1) / num_ranks;
  constexpr std::int64_t kAtOnce = 1024;
  float sum[kAtOnce];
  for (std::int64_t first = begin; first < end; first += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, end - first);
    std::fill_n(sum, count, 0.0f);
    for (const RankOperands& other : ranks) {
      const float* x = reinterpret_cast<const float*>(other.x) + first;
      for (std::int64_t i = 0; i < count; ++i) sum[i] += x[i];
    }
    for (const RankOperands& other : ranks) std::copy_n(sum, count, reinterpret_cast<float*>(other.y) + first);
  }
}

void all_gather(int rank, std::span<const RankOperands> ranks, std::int64_t rows, std::int64_t x_features,
                std::int64_t y_features) {
  const std::int64_t first = rank * x_features, count = std::min(x_features, y_features - first);
  if (count <= 0) return;
  const float* x = reinterpret_cast<const float*>(ranks[static_cast<std::size_t>(rank)].x);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (const RankOperands& other : ranks) {
      std::copy_n(x + row * x_features, count, reinterpret_cast<float*>(other.y) + row * y_features + first);
    }
  }
}

}  // namespace tl
