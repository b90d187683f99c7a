#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>

namespace tl {
namespace {

int rank_of(const RowScan& scan, float logit) {
  int rank = 1;
  for (int b = 0; b < scan.num_blocks(); ++b) {
    if (scan.block_max[b] <= logit) continue;
    const auto values = scan.block(b);
    rank += static_cast<int>(std::count_if(values.begin(), values.end(), [logit](float x) { return x > logit; }));
  }
  return rank;
}

}  // namespace

double log_sum_exp(const RowScan& scan) { return scan.max + std::log(sum_weights(scan, 1.0f, nullptr)); }

void row_logprobs(const RowScan& scan, TokenId chosen, int num_top, Candidates& scratch, RowLogprobs& out) {
  const double normalizer = log_sum_exp(scan);
  const auto logprob = [&](TokenId token) {
    return TokenLogprob{token, static_cast<float>(scan.logits[token] - normalizer)};
  };
  out.chosen = logprob(chosen);
  out.rank = rank_of(scan, scan.logits[chosen]);
  out.top.clear();
  if (num_top == 0) return;
  gather_top_k(scan, num_top, 1.0f, scratch);
  const auto more_likely = [&](TokenId a, TokenId b) {
    return scan.logits[a] != scan.logits[b] ? scan.logits[a] > scan.logits[b] : a < b;
  };
  const int count = std::min(num_top, scratch.size());
  std::partial_sort(scratch.ids.begin(), scratch.ids.begin() + count, scratch.ids.end(), more_likely);
  for (int i = 0; i < count; ++i) out.top.push_back(logprob(scratch.ids[i]));
}

}  // namespace tl
