// How many drafts rows bring, on a device whose step times are modelled: never slower, and faster where drafts are
// right.
#include "batching/draft_pace.h"

#include <cmath>
#include <cstdio>

#include "random_load.h"
#include "simulated_device.h"

namespace {

// Guesses as many tokens as it may; the device says which are right.
class EagerDrafter : public tl::Drafter {
 public:
  void draft(std::span<const std::int32_t>, int most, tl::TokenRun& out) override {
    for (int i = 0; i < most; ++i) out.push_back(1);
  }
};

// A batch of requests that all run from the beginning.
struct FullBatch {
  int batch;
  StepTimes times;
  std::function<double(int)> keeps;  // how likely a draft for a request is right

  // Tokens per second while all requests run.
  double rate(bool drafts) const {
    constexpr int kPrompt = 128, kGenerated = 384;
    const std::vector<SimulatedRequest> requests(static_cast<std::size_t>(batch), {kPrompt, kGenerated, kGenerated});
    auto config = scheduler_config(tl::CapacityPolicy::kGuaranteedNoEvict, batch, 8192, kPrompt + kGenerated);
    if (drafts) {
      config.max_draft_len = tl::kMaxDrafts;
      config.make_drafter = [](const tl::Request&) { return std::make_unique<EagerDrafter>(); };
    }
    const tl::KvManagerConfig cache{.num_blocks = batch * (kPrompt + kGenerated) / 32, .tokens_per_block = 32};
    Simulation simulation(config, cache, requests, times);
    simulation.device().keeps = keeps;
    simulation.run();
    return simulation.tokens_per_second;
  }
  double gain() const { return rate(true) / rate(false); }
};

// A GPU whose steps read weights for long, and processors on which a token more takes a fifth, or all, of a row's time.
const StepTimes kGpu, kCpu{.base = 40, .per_token = 10}, kSlow{.base = 1, .per_token = 50};

TEST(drafts_are_never_slower) {
  for (const StepTimes& times : {kGpu, kCpu, kSlow}) {
    for (const int batch : {1, 4, 16, 64, 256}) {
      for (const double kept : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
        const double gain = FullBatch{batch, times, [=](int) { return kept; }}.gain();
        if (gain < 0.98) std::fprintf(stderr, "base %g, batch %d, kept %g: %g\n", times.base, batch, kept, gain);
        CHECK(gain >= 0.98);
      }
    }
  }
}

TEST(drafts_that_are_right_pay) {
  const auto gain = [](int batch, double kept) { return FullBatch{batch, kGpu, [=](int) { return kept; }}.gain(); };
  CHECK(gain(1, 0.8) > 3 && gain(16, 0.8) > 2.2 && gain(64, 0.8) > 1.4);
  CHECK(gain(1, 1) > 7);
}

// Of requests side by side each has the drafts that it is worth.
TEST(requests_are_paced_by_themselves) {
  const double gain = FullBatch{16, kGpu, [](int request) { return request % 2 ? 0.9 : 0.0; }}.gain();
  const double all = FullBatch{16, kGpu, [](int) { return 0.9; }}.gain();
  const double none = FullBatch{16, kGpu, [](int) { return 0.0; }}.gain();
  CHECK(none < 1.01 && all > 2.5 && gain > 0.98);
}

// A machine that becomes slower and steps of more rows do not count as drafts do, and one step that was held up counts
// for little.
TEST(the_cost_of_a_draft_is_told_from_steps_that_follow_each_other) {
  tl::DraftCost cost;
  const auto seconds = [](int i, int rows, int drafts) { return 1e-3 + 1e-6 * i + 5e-5 * rows + 1e-5 * drafts; };
  for (int i = 0; i < 10; ++i) cost.observe(4, 0, 4, seconds(i, 4, 0));
  CHECK(!cost.tokens_per_draft());
  for (int i = 10; i < 500; ++i) {
    const int num_rows = i % 50 < 25 ? 4 : 8, num_drafts = i % 7;
    cost.observe(num_rows, num_drafts, 4, seconds(i, num_rows, num_drafts) + (i == 250 ? 5e-3 : 0));
  }
  const double expected = 1e-5 * 4 / seconds(470, 6, 3);
  CHECK(std::abs(*cost.tokens_per_draft() - expected) < 0.2 * expected);
}

}  // namespace

TEST_MAIN
