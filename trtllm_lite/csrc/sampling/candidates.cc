#include "sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace tl {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float nth_largest(std::span<const float> values, int n, std::vector<float>& scratch) {
  scratch.assign(values.begin(), values.end());
  std::nth_element(scratch.begin(), scratch.begin() + (n - 1), scratch.end(), std::greater<>());
  return scratch[n - 1];
}

// The smallest logit that, divided by the temperature, reaches bound / temperature: rounding may give logits below
// `bound` the same quotient. Comparing logits with it saves a division per token.
float smallest_reaching(float bound, float temperature) {
  const float scaled_bound = bound / temperature;
  if (std::isinf(scaled_bound)) return std::numeric_limits<float>::lowest();  // nothing finite is below
  for (float below = bound;; bound = below) {
    below = std::nextafter(bound, kLowest);
    if (below == kLowest || !(below / temperature >= scaled_bound)) return bound;
  }
}

}  // namespace

void Candidates::clear() {
  ids.clear();
  scaled.clear();
  weights.clear();
}

void Candidates::push_back(TokenId id, float scaled_logit, float weight) {
  ids.push_back(id);
  scaled.push_back(scaled_logit);
  weights.push_back(weight);
}

float reached_by_at_least(const RowScan& scan, int k, std::vector<float>& scratch) {
  if (k > scan.num_blocks()) return kLowest;
  return nth_largest(scan.block_max, k, scratch);
}

void gather_at_least(const RowScan& scan, float bound, float temperature, Candidates& out) {
  out.clear();
  const float lowest = smallest_reaching(std::max(bound, std::numeric_limits<float>::lowest()), temperature);
  const float max_scaled = scan.max / temperature;
  for (int b = 0; b < scan.num_blocks(); ++b) {
    if (scan.block_max[b] < lowest) continue;
    TokenId id = b * kScanBlock;
    for (float logit : scan.block(b)) {
      if (logit >= lowest) out.push_back(id, logit / temperature, softmax_weight(logit, temperature, max_scaled));
      ++id;
    }
  }
}

void gather_top_k(const RowScan& scan, int k, float temperature, Candidates& out) {
  gather_at_least(scan, reached_by_at_least(scan, k, out.scratch), temperature, out);
  if (out.size() <= k) return;
  const float kth = nth_largest(out.scaled, k, out.scratch);
  out.filter([&](std::size_t i) { return out.scaled[i] >= kth; });
}

}  // namespace tl
