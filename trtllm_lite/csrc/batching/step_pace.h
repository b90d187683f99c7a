// How many tokens a step takes that is to end within a time, from the executor's timings.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

namespace tl {

class StepPace {
 public:
  // A step reads all weights, and with fewer tokens of prompts takes about as long.
  static constexpr int kLeastPrefill = 64;

  // `seconds` that a step may take; 0: any. Prompts get `least_prefill` tokens of it in any case.
  explicit StepPace(double seconds, int least_prefill = kLeastPrefill)
      : seconds_(seconds), least_prefill_(least_prefill) {}

  bool is_limited() const { return seconds_ > 0; }
  // Tokens of a step that computes prompts beside `num_decode_tokens` others.
  int max_prefill(int num_decode_tokens) const {
    if (!is_limited()) return std::numeric_limits<int>::max();
    return std::max(static_cast<int>(std::min(seconds_ / seconds_per_token_, kMostTokens)) - num_decode_tokens,
                    least_prefill_);
  }

  // A step that does not only decode took so long. One that ended early because there was little to compute says
  // nothing about full ones.
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
  double seconds_per_token_ = 1e-3;  // at first; that of a small model on one CPU core
  bool is_measured_ = false;
};

}  // namespace tl
