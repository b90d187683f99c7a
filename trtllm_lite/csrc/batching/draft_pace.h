// How many drafts are worth their time, from what became of earlier ones and from the executor's timings.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "batching/step.h"

namespace tl {

// What a draft costs a step that decodes: by how much steps of as many rows differ that follow each other, for each
// draft by which they differ. So neither a machine whose speed drifts nor texts that grow count as the cost of drafts.
// Of these differences about the last kMemory count, and of the steps for all else.
class DraftCost {
 public:
  // In tokens: how many a step would have come to in the time that a draft takes. 0: a draft is free; 1: it takes as
  // long as a row of its own. None before kTrials differences have been seen: until then let every other step have
  // drafts, one for each row.
  std::optional<double> tokens_per_draft() const {
    if (num_pairs_ < kTrials) return std::nullopt;
    return std::clamp(products_ / squares_ * num_generated_ / seconds_, 0.0, 1.0);
  }
  int trial_len() const { return static_cast<int>(num_steps_) % 2; }

  // A step of so many rows, which brought so many drafts in all, came to so many tokens.
  void observe(int num_rows, int num_drafts, int num_generated, double seconds) {
    if (seconds <= 0) return;
    average(num_generated_, num_generated, ++num_steps_);
    average(seconds_, seconds, num_steps_);
    if (num_steps_ > 1 && num_rows == last_.num_rows && num_drafts != last_.num_drafts) {
      const double drafts = num_drafts - last_.num_drafts;
      const double most = std::abs(drafts) * seconds_ / num_generated_;  // beyond it something else held a step up
      average(products_, drafts * std::clamp(seconds - last_.seconds, -most, most), ++num_pairs_);
      average(squares_, drafts * drafts, num_pairs_);
    }
    last_ = {num_rows, num_drafts, seconds};
  }

 private:
  static constexpr double kMemory = 64, kTrials = 4;
  struct Step {
    int num_rows = 0, num_drafts = 0;
    double seconds = 0;
  };
  static void average(double& mean, double value, double count) {
    mean += std::max(1.0 / count, 1.0 / kMemory) * (value - mean);
  }

  Step last_;
  double num_generated_ = 0, seconds_ = 0, num_steps_ = 0;  // means, over so many
  double products_ = 0, squares_ = 0, num_pairs_ = 0;       // means, of differences in drafts and seconds
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
    num_tried_ = 2;
    num_empty_ = 0;
    return std::exchange(rest_, std::min(2 * rest_, kMostRest));
  }

 private:
  static bool pays(double kept, double tokens_per_draft) { return kept > kMargin * tokens_per_draft + kLeastGain; }

  static constexpr double kUntried = 0.6, kMemory = 32;
  static constexpr double kMargin = 1.25, kLeastGain = 0.02;  // both numbers are estimates
  static constexpr int kMostEmpty = 8;                        // steps that nothing was guessed for
  static constexpr int kLeastRest = 32, kMostRest = 512;
  double acceptance_ = kUntried, num_tried_ = 2;
  int rest_ = kLeastRest, num_empty_ = 0;
};

}  // namespace tl
