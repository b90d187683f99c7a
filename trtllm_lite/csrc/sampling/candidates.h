// Finds the few tokens of a row that can still be chosen, without sorting the vocabulary.
#pragma once

#include <span>
#include <vector>

#include "sampling/row_scan.h"
#include "sampling/sampling_params.h"

namespace tl {

struct WeightedLogit {
  float scaled;
  float weight;
};

// Parallel arrays, in ascending order of token id. Memory is kept between rows.
struct Candidates {
  std::vector<TokenId> ids;
  std::vector<float> scaled;   // logit / temperature
  std::vector<float> weights;  // exp(scaled - the row's largest scaled)
  std::vector<float> scratch;
  std::vector<WeightedLogit> weighted_scratch;

  int size() const { return static_cast<int>(ids.size()); }
  void clear();
  void push_back(TokenId id, float scaled_logit, float weight);
  // Keeps the candidates for which keep(index) holds, in order.
  template <typename Keep>
  void filter(Keep keep) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!keep(i)) continue;
      ids[kept] = ids[i];
      scaled[kept] = scaled[i];
      weights[kept++] = weights[i];
    }
    ids.resize(kept);
    scaled.resize(kept);
    weights.resize(kept);
  }
};

// A logit that at least `k` logits of the row reach: the k-th largest block maximum. -inf if the row has fewer than k
// blocks. O(number of blocks). k >= 1.
float reached_by_at_least(const RowScan& scan, int k, std::vector<float>& scratch);

// Fills `out` with every token whose scaled logit is finite and >= bound / temperature, reading only the blocks that
// have one.
void gather_at_least(const RowScan& scan, float bound, float temperature, Candidates& out);

// Fills `out` with the k tokens of largest scaled logit and all tokens that tie with the k-th; finite ones only.
void gather_top_k(const RowScan& scan, int k, float temperature, Candidates& out);

}  // namespace tl
