// GrammarDrafter over a fake grammar, with and without another drafter.
#include "drafts/grammar_drafter.h"

#include "fake_grammar.h"

namespace {

void run_grammars(std::uint64_t seed, tl::SchedulerConfig config, const tl::KvManagerConfig& cache, Totals& totals) {
  Load load(seed, config.max_batch_size, cache.num_blocks, tl::with_steps_of(cache, config.max_num_tokens).geometry());
  config.drafter = std::make_shared<tl::GrammarDrafter>(grammar_of, load.draw(2) ? fake_drafter() : nullptr);
  config.max_draft_len = 1 + load.draw(tl::kMaxDrafts);
  config.paces_drafts = load.draw(3) == 0;
  Driver driver(config, cache, config.max_batch_size + load.draw(3));
  driver.may_wait = load.draw(2) > 0;
  driver.executor.seconds_per_token = 1e-3;
  driver.executor.seconds_per_copy = 1e-6 * std::pow(10.0, load.draw(5));
  for (int i = 0; i < 120; ++i) {
    if (load.draw(3) > 0) driver.submit(load.request());
    const auto some = static_cast<tl::RequestId>(1 + load.draw(static_cast<int>(driver.heard.size()) + 1));
    if (load.draw(12) == 0) driver.end(some, tl::FinishReason::kCancelled);
    if (load.draw(40) == 0) {
      driver.executor.on_wait = [](const tl::StepBatch& batch) {
        throw tl::StepError("device fault", {batch.rows.empty() ? 0 : batch.rows.front().slot});
      };
    }
    driver.step();
  }
  driver.run();
  driver.check_all_returned();
  const tl::SchedulerStats stats = driver.scheduler.stats();
  totals.recomputed += stats.num_recompute_preemptions;
  totals.swapped += stats.num_swap_preemptions;
  for (const std::int64_t count : stats.drafts.num_accepted) totals.accepted += count, totals.rejected -= count;
  for (const std::int64_t count : stats.drafts.num_drafted) totals.rejected += count;
}

// Every request gets its own tokens under prefix reuse, forks, beams, swaps, preemption, cancellation and failed steps.
TEST(grammars_draft_beside_others) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(60); ++seed) {
    const auto policy = seed % 2 ? tl::CapacityPolicy::kMaxUtilization : tl::CapacityPolicy::kGuaranteedNoEvict;
    const tl::KvManagerConfig cache{.num_blocks = 40,
                                    .num_host_blocks = seed % 4 == 3 ? 24 : 0,
                                    .tokens_per_block = 4,
                                    .enable_block_reuse = seed % 3 > 0};
    run_grammars(seed, scheduler_config(policy, 6, 16, 72), cache, totals);
  }
  CHECK(reaches(totals.accepted, 500) && reaches(totals.rejected, 100));
  CHECK(reaches(totals.swapped, 5) && reaches(totals.recomputed, 5));
}

TEST(what_has_to_come_is_kept_and_requests_without_grammar_have_no_drafts) {
  tl::SchedulerConfig config = scheduler_config(tl::CapacityPolicy::kGuaranteedNoEvict, 4, 64, 256);
  config.drafter = std::make_shared<tl::GrammarDrafter>(grammar_of, nullptr);
  config.max_draft_len = 8;
  config.paces_drafts = false;
  Driver driver(config, {.num_blocks = 256, .tokens_per_block = 4});
  for (const std::uint64_t seed : {4, 5, 8, 9}) driver.submit(spec_of({1, 2, 3, 4, 5}, 100, seed));
  driver.on_step = [&](const tl::StepBatch& batch) {
    for (const tl::StepRow& row : batch.rows) CHECK(row.num_drafts == 0 || row.request.index % 2 == 1);
  };
  driver.run();
  const auto [num_rows, num_drafted, num_accepted] = driver.scheduler.stats().drafts;
  CHECK(num_rows > 10 && num_drafted == num_accepted);
  CHECK(num_drafted[kRun - 1] > 5 && num_drafted[kRun] == 0);
}

// Drafts of another drafter end at the first token that the grammar forbids.
TEST(forbidden_drafts_are_cut) {
  class Fives : public tl::SequenceDrafter {
   public:
    void draft(std::span<const std::int32_t>, int most, tl::TokenRun& out) override {
      for (int i = 0; i < most; ++i) out.push_back(i == 2 ? 5 : 6);
    }
  };
  const auto fives =
      std::make_shared<tl::SequenceDrafters>([](const tl::Request&) { return std::make_unique<Fives>(); });
  tl::GrammarDrafter drafter(grammar_of, fives);
  for (const std::uint64_t seed : {0, 1}) {
    tl::Request request(1, spec_of({1, 2, 3}, 50, seed), {});
    request.draft_state = drafter.start(request);
    request.rest = 0;
    CHECK(request.draft_state->forces == (seed == 1));
    tl::DraftTask task{.request = request, .state = request.draft_state.get(), .slot = 0, .most = 4, .drafts = {}};
    drafter.look_at({}, std::span(&task, 1));
    CHECK(!task.forced);
    drafter.draft(std::span(&task, 1));
    CHECK(task.drafts.size() == (seed == 1 ? 2 : 4));
  }
}

}  // namespace
