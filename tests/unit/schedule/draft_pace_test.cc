// How many draft tokens DraftPace gives each row, on a device with modelled step times: drafting never slows a batch
// down, and speeds it up where drafts are right.
#include "drafts/draft_pace.h"

#include <cmath>
#include <cstdio>
#include <map>

#include "drafts/sequence_drafter.h"
#include "random_load.h"
#include "simulated_device.h"

namespace {

// Drafts as many tokens as it may; the device decides which are right.
class EagerDrafter : public tl::SequenceDrafter {
 public:
  void draft(std::span<const std::int32_t>, int most, tl::TokenRun& out) override {
    for (int i = 0; i < most; ++i) out.push_back(1);
  }
};

// Takes milliseconds for each draft token, and for each token that came while the drafter was not asked.
class SlowDrafter : public tl::Drafter {
 public:
  double per_place = 0, per_token = 0, share = 0;
  double* clock = nullptr;  // simulated time in seconds

  std::unique_ptr<tl::DraftState> start(const tl::Request&) override { return std::make_unique<Known>(); }
  double relative_cost() const override { return share; }
  void look_at(const tl::StepBatch&, std::span<tl::DraftTask> tasks) override {
    for (tl::DraftTask& task : tasks) {
      const auto& known = static_cast<Known&>(*task.state);
      const int num_behind = static_cast<int>(task.request.tokens.size()) - known.num_tokens;
      task.num_behind = num_behind > tl::kMaxDrafts + 1 ? num_behind : 0;
    }
  }
  tl::DraftTimes draft(std::span<tl::DraftTask> tasks) override {
    int num_places = 0;
    tl::DraftTimes times;
    for (tl::DraftTask& task : tasks) {
      if (task.most == 0) continue;
      times.num_caught_up += task.num_behind;
      static_cast<Known&>(*task.state).num_tokens = static_cast<int>(task.request.tokens.size());
      num_places = std::max(num_places, task.most);
      for (int i = 0; i < task.most; ++i) task.drafts.push_back(1);
    }
    times.catching_up = times.num_caught_up * per_token / 1e3;
    times.drafting = num_places * per_place / 1e3;
    *clock += times.drafting + times.catching_up;
    return times;
  }
  void launched(const tl::StepBatch&) override {}
  void end(tl::DraftState&, std::span<const std::int32_t>) override {}

 private:
  struct Known : tl::DraftState {
    int num_tokens = 0;
  };
};

// A batch of requests that all run from the start.
struct FullBatch {
  int batch;
  StepTimes times;
  std::function<double(int)> keeps;  // probability that a draft token of a request is right

  double share = 0;  // time of drafting relative to the device's step time
  int always = 0;    // if not 0, every row brings as many drafts

  // Returns tokens per second while all requests run.
  double rate(bool drafts) const {
    constexpr int kPrompt = 128, kGenerated = 384;
    const std::vector<SimulatedRequest> requests(static_cast<std::size_t>(batch), {kPrompt, kGenerated, kGenerated});
    auto config = scheduler_config(tl::CapacityPolicy::kGuaranteedNoEvict, batch, 8192, kPrompt + kGenerated);
    const auto slow = std::make_shared<SlowDrafter>();
    if (drafts) config.max_draft_len = always > 0 ? always : tl::kMaxDrafts;
    config.paces_drafts = always == 0;
    if (drafts && share > 0) config.drafter = slow;
    if (drafts && share == 0) {
      config.drafter =
          std::make_shared<tl::SequenceDrafters>([](const tl::Request&) { return std::make_unique<EagerDrafter>(); });
    }
    const tl::KvManagerConfig cache{.num_blocks = batch * (kPrompt + kGenerated) / 32, .tokens_per_block = 32};
    Simulation simulation(config, cache, requests, times);
    simulation.device().keeps = keeps;
    slow->clock = &simulation.device().seconds;
    slow->per_place = share * (times.base + times.per_token * batch);
    slow->per_token = share * times.per_token;
    slow->share = share;
    simulation.run();
    return simulation.tokens_per_second;
  }
  double gain() const { return rate(true) / rate(false); }
};

// Step times of a GPU, where reading weights takes most of a step, and of processors where a row's second token adds a
// fifth of the first token's time, or about as much as the first token took.
const StepTimes kGpu, kCpu{.base = 40, .per_token = 10}, kSlow{.base = 1, .per_token = 50};

TEST(drafts_are_never_slower) {
  int number = 0;
  for (const StepTimes& times : {kGpu, kCpu, kSlow}) {
    for (const int batch : {1, 4, 16, 64, 256}) {
      for (const double kept : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
        if (!is_due(number++)) continue;
        const double gain = FullBatch{batch, times, [=](int) { return kept; }}.gain();
        if (gain < 0.98) std::fprintf(stderr, "base %g, batch %d, kept %g: %g\n", times.base, batch, kept, gain);
        CHECK(gain >= 0.98);
      }
    }
  }
}

TEST(drafts_that_take_time_are_never_slower) {
  int number = 0;
  for (const StepTimes& times : {kGpu, kCpu}) {
    for (const int batch : {1, 4, 16, 64}) {
      for (const double share : {0.05, 0.15, 0.4}) {
        for (const double kept : {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}) {
          if (!is_due(number++)) continue;
          const double gain = FullBatch{batch, times, [=](int) { return kept; }, share}.gain();
          if (gain < 0.98) std::fprintf(stderr, "batch %d, share %g, kept %g: %g\n", batch, share, kept, gain);
          CHECK(gain >= 0.98);
        }
      }
    }
  }
}

// A draft position costs the same for one row and for all rows, so rows have to draft together.
TEST(drafts_that_take_time_pay_in_batches) {
  const auto gain = [](int batch, double kept, double share) {
    return FullBatch{batch, kGpu, [=](int) { return kept; }, share}.gain();
  };
  CHECK(gain(1, 0.8, 0.05) > 2.5 && gain(16, 0.8, 0.05) > 1.9 && gain(64, 0.8, 0.05) > 1.3);
  CHECK(gain(1, 1, 0.4) > 1.8 && gain(16, 1, 0.4) > 1.4);
}

TEST(drafts_that_are_right_pay) {
  const auto gain = [](int batch, double kept) { return FullBatch{batch, kGpu, [=](int) { return kept; }}.gain(); };
  CHECK(gain(1, 0.8) > 3 && gain(16, 0.8) > 2.2 && gain(64, 0.8) > 1.4);
  CHECK(gain(1, 1) > 7);
}

// Steps of a device that computes tokens in tiles take longer by leaps: the number of drafts that pays best fills a
// tile.
TEST(drafts_fill_tiles) {
  for (const int tile : {64, 128}) {
    for (const int batch : {16, 64}) {
      for (const double kept : {0.0, 0.2, 0.5, 0.8, 0.95}) {
        StepTimes times;
        times.tile = tile, times.known = true;
        FullBatch full{batch, times, [=](int) { return kept; }};
        const double paced = full.gain();
        double best = 1;
        for (int num_drafts = 1; num_drafts <= tl::kMaxDrafts; ++num_drafts) {
          full.always = num_drafts;
          best = std::max(best, full.gain());
        }
        if (paced < 0.93 * best) std::fprintf(stderr, "%d, %d, %g: %g of %g\n", tile, batch, kept, paced, best);
        CHECK(paced >= 0.93 * best && (tile < batch * 2 || paced > 0.97 * best));
      }
    }
  }
}

// Each request of a batch gets the number of draft tokens that saves it time.
TEST(requests_are_paced_by_themselves) {
  const double gain = FullBatch{16, kGpu, [](int request) { return request % 2 ? 0.9 : 0.0; }}.gain();
  const double all = FullBatch{16, kGpu, [](int) { return 0.9; }}.gain();
  const double none = FullBatch{16, kGpu, [](int) { return 0.0; }}.gain();
  CHECK(none < 1.01 && all > 2.5 && gain > 0.98);
}

// Knows four tokens of each `period` of a request; its drafts elsewhere are always wrong.
class ForcingDrafter : public tl::Drafter {
 public:
  ForcingDrafter(bool proposes, std::size_t period) : proposes_(proposes), period_(period) {}
  std::unique_ptr<tl::DraftState> start(const tl::Request&) override {
    auto state = std::make_unique<tl::DraftState>();
    state->proposes = proposes_;
    state->forces = true;
    return state;
  }
  double relative_cost() const override { return 0; }
  void look_at(const tl::StepBatch&, std::span<tl::DraftTask> tasks) override {
    for (tl::DraftTask& task : tasks) {
      if (task.most > 0 && task.request.forced_rest == 0) task.forced = num_known(task.request) > 0;
    }
  }
  tl::DraftTimes draft(std::span<tl::DraftTask> tasks) override {
    for (tl::DraftTask& task : tasks) {
      const bool forced = task.forced.value_or(false);
      right[task.request.tokens[0]] = forced;
      const int num = forced ? std::min(task.most, num_known(task.request)) : task.most;
      for (int i = 0; i < num; ++i) task.drafts.push_back(1);
    }
    return {};
  }
  void launched(const tl::StepBatch&) override {}
  void end(tl::DraftState&, std::span<const std::int32_t>) override {}

  std::map<int, bool> right;  // whether a request's drafts are right, by its prompt's first token

 private:
  int num_known(const tl::Request& request) const {
    return std::max(4 - static_cast<int>(request.tokens.size() % period_), 0);
  }

  bool proposes_;
  std::size_t period_;
};

double forcing_rate(const StepTimes& times, bool forces, bool proposes, std::size_t period) {
  constexpr int kBatch = 4, kPrompt = 128, kGenerated = 768;
  const std::vector<SimulatedRequest> requests(kBatch, {kPrompt, kGenerated, kGenerated});
  auto config = scheduler_config(tl::CapacityPolicy::kGuaranteedNoEvict, kBatch, 8192, kPrompt + kGenerated);
  const auto drafter = std::make_shared<ForcingDrafter>(proposes, period);
  if (forces) config.max_draft_len = tl::kMaxDrafts;
  if (forces) config.drafter = drafter;
  Simulation simulation(config, {.num_blocks = kBatch * (kPrompt + kGenerated) / 32, .tokens_per_block = 32}, requests,
                        times);
  simulation.device().keeps = [drafter](int request) { return drafter->right[request] ? 1.0 : 0.0; };
  simulation.run();
  return simulation.tokens_per_second;
}

// A request with bad drafts pauses drafting, but not where a grammar forces the next tokens.
TEST(what_has_to_come_pays_whatever_becomes_of_drafts) {
  for (const StepTimes& times : {kGpu, kCpu}) {
    const double none = forcing_rate(times, false, false, 8);
    const double alone = forcing_rate(times, true, false, 8), beside = forcing_rate(times, true, true, 8);
    if (alone <= 1.2 * none || beside <= 0.95 * alone)
      std::fprintf(stderr, "base %g: %g, %g, %g\n", times.base, none, alone, beside);
    CHECK(alone > 1.2 * none && beside > 0.95 * alone);
  }
}

TEST(what_never_comes_is_never_slower) {
  for (const StepTimes& times : {kGpu, kCpu, kSlow}) {
    const double rare = forcing_rate(times, true, true, 300) / forcing_rate(times, false, false, 300);
    if (rare < 0.98) std::fprintf(stderr, "base %g: %g\n", times.base, rare);
    CHECK(rare >= 0.98);
  }
}

// A machine that becomes slower, and steps with more rows, do not count as the cost of drafts; a single delayed step
// counts for little.
TEST(the_cost_of_a_draft_is_told_from_steps_that_follow_each_other) {
  tl::DraftCost cost;
  const auto step = [](int i, int rows, int drafts) {
    const double seconds = 1e-3 + 1e-6 * i + 5e-5 * rows + 1e-5 * drafts;
    return tl::DecodeStep{rows, drafts, drafts > 0, 4, seconds, drafts > 0 ? 3e-5 : 0};
  };
  for (int i = 0; i < 10; ++i) cost.observe(step(i, 4, 0));
  CHECK(!cost.known());
  for (int i = 10; i < 500; ++i) {
    const int num_rows = i % 50 < 25 ? 4 : 8, num_drafts = i % 7;
    tl::DecodeStep next = step(i, num_rows, num_drafts);
    if (i == 250) next.seconds += 5e-3;
    cost.observe(next);
  }
  const double rate = 4 / (step(470, 6, 3).seconds + 3e-5);
  CHECK(cost.known() && std::abs(cost.per_draft(6, 3) - 1e-5 * rate) < 0.2e-5 * rate);
  CHECK(std::abs(cost.per_place() - 3e-5 * rate) < 0.6e-5 * rate);
}

// A drafter may catch up for 1/200 of the time of steps, plus the time that accepted draft tokens saved.
TEST(catching_up_takes_no_more_than_a_share_and_what_drafts_saved) {
  const auto seconds_earned = [](int num_drafts, int num_kept) {
    tl::DraftCost cost;
    for (int i = 0; i < 10; ++i) cost.observe({1, i % 2, i % 2, 1 + i % 2, 1, 0});  // drafts are free and always right
    while (cost.catch_up_budget() > 0) cost.observe_catching_up(10, 1);
    CHECK(cost.seconds_to_catch_up() == 0.1);
    const double before = cost.catch_up_budget();
    for (int i = 0; i < 100; ++i) cost.observe({1, num_drafts, num_drafts, 1 + num_kept, 1, 0});
    return cost.catch_up_budget() - before;
  };
  CHECK(std::abs(seconds_earned(0, 0) - 0.5) < 1e-9 && std::abs(seconds_earned(4, 0) - 0.5) < 1e-9);
  CHECK(seconds_earned(4, 4) > 80);
}

// A step whose rows all fail generates nothing, and changes no estimate.
TEST(steps_without_tokens_are_passed_over) {
  tl::DraftCost cost;
  cost.observe({1, 0, 0, 0, 1, 0});
  for (int i = 0; i < 10; ++i) cost.observe({1, i % 2, i % 2, 1 + i % 2, 1, 0});
  CHECK(cost.catch_up_budget() > 0);
}

}  // namespace
