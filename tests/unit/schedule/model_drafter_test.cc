// ModelDrafter over a fake draft model, whose device checks that the blocks of every row hold the row's sequence.
#include "drafts/model_drafter.h"

#include "drafts/grammar_drafter.h"
#include "fake_grammar.h"

namespace {

// The arguments that the scheduler's drafter was made with, and counts of its work.
struct Draft {
  Draft(const tl::SchedulerConfig& config, const tl::KvManagerConfig& cache, int num_slots, int errs_on,
        int max_kept = 0) {
    auto made = std::make_unique<FakeExecutor>(FakeShape{.num_slots = config.max_batch_size,
                                                         .num_blocks = cache.num_blocks,
                                                         .num_host_blocks = cache.num_host_blocks,
                                                         .tokens_per_block = cache.tokens_per_block});
    executor = made.get();
    executor->on_launch = [this, max_kept](const tl::StepBatch& batch) {
      num_tokens += std::ssize(batch.token_ids);
      num_copies += std::ssize(batch.copies);
      // A row of one token without a sample would make a GPU overwrite the features that the head is still to read.
      for (const tl::StepRow& row : batch.rows) CHECK(max_kept == 0 || row.sample || row.num_tokens > 1);
    };
    const auto params = [errs_on](const std::shared_ptr<const tl::SlotParams>& of_request) {
      auto own = std::make_shared<FakeParams>();
      own->seed = dynamic_cast<const FakeParams&>(*of_request).seed;
      own->errs_on = errs_on;
      return own;
    };
    const int least_tokens = tl::ModelDrafter::most_at_once(max_kept) * config.max_batch_size;
    const tl::ModelDrafterConfig drafting{
        .num_slots = num_slots,
        .num_blocks = cache.num_blocks,
        .num_host_blocks = cache.num_host_blocks,
        .tokens_per_block = cache.tokens_per_block,
        .num_groups = static_cast<int>(cache.groups.size()),
        .blocks_of_state = is_state(cache.groups.back()) ? cache.groups.back().blocks : 0,
        .max_num_tokens = std::max(config.max_num_tokens, least_tokens),
        .params = params,
        .seconds = [this] { return now += 1e-6; },
        .max_kept = max_kept};
    drafter = std::make_shared<tl::ModelDrafter>(drafting, std::move(made));
  }

  FakeExecutor* executor;
  std::shared_ptr<tl::ModelDrafter> drafter;
  std::int64_t num_tokens = 0, num_copies = 0;  // tokens computed and blocks copied
  double now = 0;
};

struct Drafted {
  explicit Drafted(tl::SchedulerConfig config, const tl::KvManagerConfig& cache, int errs_on = 0, int max_kept = 0)
      : draft(config, cache, config.max_batch_size + 2, errs_on, max_kept), driver(with(config), cache) {}
  tl::SchedulerConfig with(tl::SchedulerConfig config) {
    config.drafter = draft.drafter;
    config.max_draft_len = 4;
    config.paces_drafts = false;
    return config;
  }
  tl::DraftCounters counters() const { return driver.scheduler.stats().drafts; }

  Draft draft;
  Driver driver;
};

tl::SchedulerConfig usual() { return scheduler_config(tl::CapacityPolicy::kGuaranteedNoEvict, 4, 64, 128); }
const tl::KvManagerConfig kCache{.num_blocks = 128, .tokens_per_block = 4};

void run_draft_model(std::uint64_t seed, tl::SchedulerConfig config, const tl::KvManagerConfig& cache, Totals& totals) {
  const tl::KvGeometry geometry = tl::with_steps_of(cache, config.max_num_tokens).geometry();
  Load load(seed, geometry.can_fork() ? config.max_batch_size : 0, cache.num_blocks, geometry);
  const int num_slots = config.max_batch_size + load.draw(3);
  Draft draft(config, cache, num_slots, load.draw(3) * 2, load.draw(2) * tl::kMaxDrafts);
  config.drafter = draft.drafter;
  if (load.draw(2)) config.drafter = std::make_shared<tl::GrammarDrafter>(grammar_of, draft.drafter);
  config.max_draft_len = 1 + load.draw(tl::kMaxDrafts);
  config.paces_drafts = load.draw(4) == 0;
  Driver driver(config, cache, num_slots);
  driver.executor.seconds_per_token = 1e-3;
  driver.executor.seconds_per_copy = 1e-6 * std::pow(10.0, load.draw(5));
  if (load.draw(3) == 0) {
    draft.executor->row_error = [&load](const tl::StepRow&) { return load.draw(50) == 0 ? "not finite" : ""; };
  }
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
  totals.hit_tokens += stats.kv.hit_tokens;
  for (const std::int64_t count : stats.drafts.num_accepted) totals.accepted += count, totals.rejected -= count;
  for (const std::int64_t count : stats.drafts.num_drafted) totals.rejected += count;
}

// Drafts stay right under prefix reuse, forks, beams, swaps, preemption, cancellation, failed steps, and next to
// grammar drafts.
TEST(the_draft_models_blocks_hold_the_sequences) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(60); ++seed) {
    const auto policy = seed % 2 ? tl::CapacityPolicy::kMaxUtilization : tl::CapacityPolicy::kGuaranteedNoEvict;
    const tl::KvManagerConfig cache{.num_blocks = 40,
                                    .num_host_blocks = seed % 4 == 3 ? 24 : 0,
                                    .tokens_per_block = 4,
                                    .enable_block_reuse = seed % 3 > 0};
    run_draft_model(seed, scheduler_config(policy, 6, 16, 72), cache, totals);
  }
  CHECK(reaches(totals.accepted, 500) && reaches(totals.rejected, 500));
  CHECK(reaches(totals.swapped, 5) && reaches(totals.recomputed, 5) && reaches(totals.hit_tokens, 500));
}

// The same for a model with states: the draft model, which has none, uses the blocks of the first group alone.
TEST(a_draft_model_without_states_drafts_for_a_model_with_states) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(60); ++seed) {
    const auto policy = seed % 2 ? tl::CapacityPolicy::kMaxUtilization : tl::CapacityPolicy::kGuaranteedNoEvict;
    const tl::KvManagerConfig cache{.num_blocks = seed % 2 ? 34 : 120,
                                    .num_host_blocks = seed % 4 == 3 ? 48 : 0,
                                    .tokens_per_block = 4,
                                    .enable_block_reuse = seed % 3 > 0,
                                    .groups = {{}, with_states(1 + static_cast<int>(seed % 7))}};
    run_draft_model(seed, scheduler_config(policy, 6, 16, 72), cache, totals);
  }
  CHECK(reaches(totals.accepted, 500) && reaches(totals.rejected, 500));
  CHECK(reaches(totals.swapped, 5) && reaches(totals.recomputed, 5) && reaches(totals.hit_tokens, 250));
}

// States are kept by copies, of which the draft model makes none: their blocks hold nothing of it, even those in which
// it had computed the long text before.
TEST(a_draft_model_copies_no_states) {
  Drafted drafted(usual(), {.num_blocks = 36, .tokens_per_block = 4, .groups = {{}, with_states(4)}});
  std::int64_t num_copies = 0;
  drafted.driver.executor.on_launch = [&](const tl::StepBatch& batch) { num_copies += std::ssize(batch.copies); };
  drafted.driver.submit(spec_of(Tokens(100, 4), 27, 1));
  drafted.driver.run();
  for (std::int32_t token = 5; token < 17; ++token) {
    drafted.driver.submit(spec_of(Tokens(9, token), 8, 1));
    if (token % 3 == 0) drafted.driver.run();
  }
  drafted.driver.run();
  CHECK(num_copies > 4 * 5 && drafted.draft.num_copies == 0);
}

TEST(a_model_that_agrees_has_all_its_drafts_kept) {
  Drafted drafted(usual(), kCache);
  for (std::uint64_t seed = 1; seed < 4; ++seed) drafted.driver.submit(spec_of({1, 2, 3, 4, 5}, 50, seed));
  drafted.driver.run();
  const auto [num_rows, num_drafted, num_accepted] = drafted.counters();
  CHECK(num_rows == 30 && num_drafted == num_accepted);  // 49 tokens of each request: nine rows of 5, one of 4
  for (const auto& [id, request] : drafted.driver.heard) CHECK(request.tokens.size() == 50);
}

// A head that reads features computes an accepted draft token anew, because the features were not known when it
// drafted.
TEST(drafts_that_are_kept_are_computed_again_from_features) {
  const auto computed = [](int max_kept) {
    Drafted drafted(usual(), kCache, 0, max_kept);
    drafted.driver.submit(spec_of({1, 2, 3, 4, 5}, 50, 1));
    drafted.driver.run();
    CHECK(drafted.counters().num_rows == 10);
    return drafted.draft.num_tokens;
  };
  // Nine rows take four draft tokens and one takes three. Without features each draft token but a row's last is
  // computed once; with features, each accepted one is computed once more.
  CHECK(computed(4) - computed(0) == 9 * 3);
}

// Two rows of a step may not compute a block that their sequences share; once computed, both use it.
TEST(a_prompt_that_sequences_share_is_computed_once) {
  tl::KvManagerConfig cache = kCache;
  cache.enable_block_reuse = true;
  const Tokens prompt(40, 7);
  const auto computed = [&](int num_requests) {
    Drafted drafted(usual(), cache);
    drafted.driver.submit(spec_of(prompt, 2, 1));
    drafted.driver.run();
    for (int i = 0; i < num_requests; ++i) drafted.driver.submit(spec_of(prompt, 6, 1));
    drafted.driver.run();
    CHECK(drafted.counters().num_rows >= num_requests);
    return drafted.draft.num_tokens;
  };
  CHECK(computed(1) >= 40 && computed(4) < computed(1) + 3 * 20);
}

TEST(nothing_is_computed_for_requests_without_drafts) {
  Drafted drafted(usual(), kCache);
  drafted.driver.submit(search_of({1, 2, 3}, 20, 2));
  drafted.driver.submit(spec_of({1, 2, 3}, 1));
  drafted.driver.run();
  CHECK(drafted.draft.num_tokens == 0 && drafted.counters().num_rows == 0);
}

TEST(a_failure_of_the_draft_model_ends_requests_and_not_the_service) {
  Drafted drafted(usual(), kCache);
  for (int i = 0; i < 3; ++i) drafted.driver.submit(spec_of({1, 2, 3}, 20, 1));
  int num_waits = 0;
  drafted.draft.executor->on_wait = [&](const tl::StepBatch&) {
    if (++num_waits == 4) throw tl::StepError("the draft model failed");
  };
  CHECK_THROWS(tl::StepError, drafted.driver.run(), "the draft model failed");
  drafted.driver.reset();
  drafted.driver.submit(spec_of({1, 2, 3}, 20, 1));
  drafted.driver.run();
  drafted.driver.check_all_returned();
  CHECK(drafted.driver.heard.at(4).end->reason == tl::FinishReason::kLength);
}

}  // namespace
