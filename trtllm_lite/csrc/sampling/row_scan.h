// The passes that read a whole row of logits. Later work reads only some blocks or a few tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tl {

// A block is long enough that the work per block is negligible, and short enough that reading one for a token is cheap.
constexpr int kScanBlock = 128;

// A row of logits and the largest logit of each block of kScanBlock logits, with which later passes skip nearly all of
// the vocabulary.
struct RowScan {
  std::span<const float> logits;
  std::vector<float> block_max;
  float max = 0.0f;
  bool has_nan_or_positive_inf = false;

  // Borrows `row`, which must outlive the scan's use. Keeps block_max's memory. -inf is a legal logit: that of a token
  // that was masked out.
  void assign(std::span<const float> row);

  int num_blocks() const { return static_cast<int>(block_max.size()); }
  std::span<const float> block(int index) const;
  // The lowest token id whose logit is `max`.
  int argmax() const;
};

// The weight of a logit in a softmax: exp(logit / temperature - max_scaled), max_scaled being the row's largest scaled
// logit; 0 below exp(-87). The division comes first, as in transformers, so that rounding makes the same ties.
float softmax_weight(float logit, float temperature, float max_scaled);

// The reason why no token can be drawn from the row at this temperature (0 = greedy); null if one can be drawn.
const char* describe_unusable(const RowScan& scan, float temperature);

// The sum of the weights of the row, in float64; the sums of its blocks, if wanted, go to block_sums [num_blocks].
double sum_weights(const RowScan& scan, float temperature, double* block_sums);

}  // namespace tl
