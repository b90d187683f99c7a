// Decides how many draft tokens are worth their time, from the fate of earlier ones and the executor's timings.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "executor/step.h"

namespace tl {

// A step in which all rows decode.
struct DecodeStep {
  int num_rows = 0, num_drafts = 0;
  int num_places = 0;  // the largest number of drafts of a row
  int num_generated = 0;
  double seconds = 0, draft_seconds = 0;
};

// Seconds of a step of a number of tokens that only decodes. Differences between numbers matter, nothing else.
using SecondsOfTokens = std::function<double(int)>;

// The price of a draft (draft token) in tokens: the number that steps would have generated in the same time. 0 means
// free; 1 means that a draft costs as much as a row of its own.
struct DraftPrice {
  double tokens = 0;
  bool measured = true;  // by few steps, so that it may be too low
};

// Where the device does not know what steps of any size take, as GPUs do, it is measured: the difference in time
// between two consecutive steps with equally many rows, divided by the difference in drafts; so drifting machine speed
// and growing texts do not count as the cost of drafts. About the last kMemory differences and steps count.
class DraftCost {
 public:
  // `known`: empty if the device knows nothing.
  explicit DraftCost(SecondsOfTokens known = {}) : known_seconds_(std::move(known)) {}

  // Whether the price is known: if it is measured, after kTrials differences. Until then, let every other step have
  // drafts, one for each row.
  bool known() const { return known_seconds_ || num_pairs_ >= kTrials; }
  // The price of each of `num_drafts` drafts, in `num_places` places of their rows, in a step that has `num_others`
  // other tokens.
  DraftPrice price(int num_others, int num_drafts, double num_places) const {
    return {per_draft(num_others, num_drafts) + per_place() * num_places / num_drafts, !known_seconds_};
  }
  // The same without the time of proposing drafts, or a lower bound if it is not yet known. A GPU's steps take longer
  // by leaps (tiles, padding), so drafts may be free, or cost more if there are fewer.
  double per_draft(int num_others, int num_drafts) const {
    if (num_steps_ == 0 || num_drafts == 0 || !known()) return 0;
    const double seconds = known_seconds_ ? known_seconds_(num_others + num_drafts) - known_seconds_(num_others)
                                          : products_ / squares_ * num_drafts;
    return std::clamp(seconds / num_drafts * rate(), 0.0, 1.0);
  }
  // The price, without that time, of the drafts of one row if each of `num_rows` rows has up to `most`: the lowest, or
  // a part of that where steps take longer by leaps, because there the drafts of a single row often cost nothing.
  DraftPrice of_row(int num_rows, int most) const {
    double tokens = 1;
    for (int place = 1; place <= most; ++place) tokens = std::min(tokens, per_draft(num_rows, num_rows * place));
    return {known_seconds_ ? tokens * kShareOfRow : tokens, !known_seconds_};
  }
  // The price of proposing one more draft for each row, however many rows there are.
  double per_place() const { return num_steps_ == 0 ? 0 : seconds_per_place_ * rate(); }
  int trial_len() const { return static_cast<int>(num_steps_) % 2; }

  // Seconds that may be spent on catching up with requests: the time of kAdvance mean steps, plus the share kShare of
  // the time of all steps, plus the time that drafts have saved. This bounds the loss on texts whose drafts
  // are never accepted.
  double catch_up_budget() const { return saved_ + kAdvance * seconds_; }
  // Mean seconds to catch up with one token; empty before the first.
  std::optional<double> seconds_to_catch_up() const {
    if (tokens_caught_up_ == 0) return std::nullopt;
    return seconds_caught_up_ / tokens_caught_up_;
  }
  void observe_catching_up(int num_tokens, double seconds) {
    if (num_tokens == 0) return;
    saved_ -= seconds;
    average(tokens_caught_up_, num_tokens, ++num_catch_ups_);
    average(seconds_caught_up_, seconds, num_catch_ups_);
  }

  void observe(const DecodeStep& step) {
    if (step.seconds <= 0 || step.num_generated == 0) return;  // failed rows generate nothing
    const double seconds = step.seconds + step.draft_seconds;
    saved_ += kShare * seconds;
    if (num_steps_ > 0) {
      const double verifying = per_draft(step.num_rows, step.num_drafts) * step.num_drafts;
      const double cost = verifying + per_place() * step.num_places;
      saved_ += (step.num_generated - step.num_rows - cost) * seconds_ / num_generated_;
    }
    average(num_generated_, step.num_generated, ++num_steps_);
    average(seconds_, seconds, num_steps_);
    if (step.num_places > 0) average(seconds_per_place_, step.draft_seconds / step.num_places, ++num_drafting_steps_);
    if (num_steps_ > 1 && step.num_rows == last_.num_rows && step.num_drafts != last_.num_drafts) {
      const double drafts = step.num_drafts - last_.num_drafts;
      const double most = std::abs(drafts) * seconds_ / num_generated_;  // beyond it, something else delayed a step
      average(products_, drafts * std::clamp(step.seconds - last_.seconds, -most, most), ++num_pairs_);
      average(squares_, drafts * drafts, num_pairs_);
    }
    last_ = step;
  }

 private:
  static constexpr double kMemory = 64, kTrials = 4, kAdvance = 3, kShare = 0.005, kShareOfRow = 0.5;
  static void average(double& mean, double value, double count) {
    mean += std::max(1.0 / count, 1.0 / kMemory) * (value - mean);
  }
  double rate() const { return num_generated_ / seconds_; }  // tokens per second

  SecondsOfTokens known_seconds_;
  DecodeStep last_;
  double saved_ = 0;                                        // seconds that drafts have saved, less those of catching up
  double num_generated_ = 0, seconds_ = 0, num_steps_ = 0;  // running means, and the number of steps in them
  // Running means, over pairs of steps, of products of their differences: drafts * seconds and drafts^2; then the
  // number of pairs.
  double products_ = 0, squares_ = 0, num_pairs_ = 0;
  double seconds_per_place_ = 0, num_drafting_steps_ = 0;
  double tokens_caught_up_ = 0, seconds_caught_up_ = 0, num_catch_ups_ = 0;  // running means, and number of catch-ups
};

// The number of drafts for one request and kind of draft: as many as are likely enough to be accepted. If none is, the
// request pauses drafting; pauses grow with repeated failure.
class DraftPace {
 public:
  // Initial expectations: the probability that a draft is accepted, and the number of steps without any draft found
  // after which no more are looked for.
  struct Prospect {
    double acceptance;
    int most_empty;
  };
  static constexpr Prospect kProposed{0.6, 8};
  static constexpr Prospect kNearlySure{0.9, 64};  // tokens that a grammar forces, between free ones

  explicit DraftPace(const Prospect& prospect = kProposed) : prospect_(prospect) {}

  // Whether drafts pay if the share `kept` of them is accepted. If both numbers are estimates, there is a margin
  // between them; a price near that of a row of its own pays only if nearly all drafts are accepted.
  static bool pays(double kept, DraftPrice price) {
    const double margin = price.measured ? kMargin * price.tokens * std::max(1 - price.tokens, 0.0) : 0;
    return kept > price.tokens + margin + kLeastGain;
  }

  // The probability that draft `number`, from 1, is accepted: that of the first draft to the power `number`.
  double kept(int number) const { return std::pow(acceptance_, number); }

  // How many drafts to ask for: at least one, unless `most` is 0.
  int draft_len(DraftPrice price, int most) const {
    int len = 0;
    while (len < most && pays(kept(len + 1), price)) ++len;
    return std::max(len, std::min(most, 1));
  }

  // Records the fate of a row's drafts, each of the given price. Returns for how many steps the request should pause
  // drafting.
  int observe(int num_drafted, int num_kept, std::optional<DraftPrice> price) {
    for (int i = 0; i < std::min(num_kept + 1, num_drafted); ++i) {
      acceptance_ += std::max(1.0 / ++num_tried_, 1.0 / kMemory) * ((i < num_kept ? 1.0 : 0.0) - acceptance_);
    }
    num_empty_ = 0;
    if (!price) return 0;
    if (!pays(acceptance_, *price)) return rest();
    if (num_kept > 1) rest_ = kLeastRest;
    return 0;
  }
  // Records that no draft was found. Returns as observe().
  int found_nothing() { return ++num_empty_ < prospect_.most_empty ? 0 : rest(); }
  int rest() {
    acceptance_ = prospect_.acceptance;
    num_tried_ = 2;
    num_empty_ = 0;
    return std::exchange(rest_, std::min(2 * rest_, kMostRest));
  }

  static constexpr int kLeastRest = 32, kMostRest = 512;  // lengths of pauses in steps; powers of two

 private:
  static constexpr double kMemory = 32;
  static constexpr double kMargin = 0.25, kLeastGain = 0.02;
  Prospect prospect_;
  double acceptance_ = prospect_.acceptance, num_tried_ = 2;
  int rest_ = kLeastRest, num_empty_ = 0;
};

}  // namespace tl
