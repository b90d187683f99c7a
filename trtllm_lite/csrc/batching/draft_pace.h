// How many drafts are worth their time, from what became of earlier ones and from the executor's timings.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "batching/step.h"

namespace tl {

// What a further token costs a step that decodes. A step's time is taken for a line over its number of tokens, fitted
// to the last steps, of which about kMemory count.
class DraftCost {
 public:
  // In tokens: how many a step would have come to in the time that a draft takes. 0: a draft is free; 1: it takes as
  // long as a row of its own. None before steps of several sizes have been seen: until then let every other step have
  // drafts, one for each row.
  std::optional<double> tokens_per_draft() const {
    if (!slope_) return std::nullopt;
    return std::min(*slope_ * num_generated_ / seconds_, 1.0);
  }
  int trial_len() const { return static_cast<int>(num_steps_) % 2; }

  // A step of so many tokens, drafts among them, came to so many.
  void observe(int num_tokens, int num_generated, double seconds) {
    if (seconds <= 0) return;
    const double weight = std::max(1.0 / ++num_steps_, 1.0 / kMemory);
    const auto average = [&](double& mean, double value) { mean += weight * (value - mean); };
    average(num_tokens_, num_tokens);
    average(num_generated_, num_generated);
    average(seconds_, seconds);
    average(squares_, static_cast<double>(num_tokens) * num_tokens);
    average(products_, num_tokens * seconds);
    const double variance = squares_ - num_tokens_ * num_tokens_;
    if (variance >= kLeastVariance) slope_ = std::max((products_ - num_tokens_ * seconds_) / variance, 0.0);
  }

 private:
  static constexpr double kMemory = 64;
  static constexpr double kLeastVariance = 0.1;  // in tokens squared: below it the line's slope is noise
  double num_tokens_ = 0, num_generated_ = 0, seconds_ = 0, squares_ = 0, products_ = 0;  // means
  double num_steps_ = 0;
  std::optional<double> slope_;  // in seconds
};

// The drafts of one request: as many as are likely enough to be kept. If none is, the request goes on without, and
// tries again after a while: the longer, the more often that was in vain.
class DraftPace {
 public:
  // Draft number i, from 1, is kept with the i-th power of the probability that one is.
  int draft_len(double tokens_per_draft, int most) const {
    int len = 0;
    for (double kept = acceptance_; len < most && pays(kept, tokens_per_draft); kept *= acceptance_) ++len;
    return std::max(len, std::min(most, 1));
  }

  // Takes in what became of a step's drafts. Returns how many tokens the request had better generate without any.
  int observe(int num_drafted, int num_kept, std::optional<double> tokens_per_draft) {
    for (int i = 0; i < std::min(num_kept + 1, num_drafted); ++i) {
      acceptance_ += std::max(1.0 / ++num_tried_, 1.0 / kMemory) * ((i < num_kept ? 1.0 : 0.0) - acceptance_);
    }
    if (!tokens_per_draft) return 0;
    num_empty_ = num_drafted > 0 ? 0 : num_empty_ + 1;
    if (pays(acceptance_, *tokens_per_draft) && num_empty_ < kMostEmpty) {
      if (num_kept > 1) rest_ = kLeastRest;
      return 0;
    }
    acceptance_ = kUntried;
    num_tried_ = 1;
    num_empty_ = 0;
    return std::exchange(rest_, std::min(2 * rest_, kMostRest));
  }

 private:
  static bool pays(double kept, double tokens_per_draft) { return kept > kMargin * tokens_per_draft + kLeastGain; }

  static constexpr double kUntried = 0.6, kMemory = 32;
  static constexpr double kMargin = 1.25, kLeastGain = 0.02;  // both numbers are estimates
  static constexpr int kMostEmpty = 8;                        // steps that nothing was guessed for
  static constexpr int kLeastRest = 32, kMostRest = 512;
  double acceptance_ = kUntried, num_tried_ = 1;
  int rest_ = kLeastRest, num_empty_ = 0;
};

}  // namespace tl
