// Estimates from the executor's timings how many tokens a step can compute within a time limit.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

namespace tl {

class StepPace {
 public:
  // The fewest prompt tokens of a step. As every step reads all weights, fewer would take about as long.
  static constexpr int kLeastPrefill = 64;

  // `seconds`: the time limit of a step; 0 means none. Prompts get at least `least_prefill` of its tokens.
  explicit StepPace(double seconds, int least_prefill = kLeastPrefill)
      : seconds_(seconds), least_prefill_(least_prefill) {}

  bool is_limited() const { return seconds_ > 0; }
  // The most prompt tokens for a step that also computes `num_decode_tokens` other tokens.
  int max_prefill(int num_decode_tokens) const {
    if (!is_limited()) return std::numeric_limits<int>::max();
    return std::max(static_cast<int>(std::min(seconds_ / seconds_per_token_, kMostTokens)) - num_decode_tokens,
                    least_prefill_);
  }

  // Records the time of a step that did not only decode. A step with little to compute says nothing about full ones.
  void observe(int num_tokens, double seconds) {
    if (!is_limited() || seconds <= 0) return;
    if (2 * num_tokens < max_prefill(0) && 2 * seconds < seconds_) return;
    const double sample = std::min(seconds / num_tokens, 2 * seconds_per_token_);
    seconds_per_token_ += (std::exchange(is_measured_, true) ? kWeight : 1) * (sample - seconds_per_token_);
  }

 private:
  static constexpr double kWeight = 0.3;  // about the last three steps count, as texts grow and machines slow down
  static constexpr double kMostTokens = 1 << 20;
  double seconds_;
  int least_prefill_;
  double seconds_per_token_ = 1e-3;  // initial value: that of a small model on one CPU core
  bool is_measured_ = false;
};

}  // namespace tl
