// Scheduler: right tokens under any load, bounded waiting, chunking, preemption, isolation.
#include <algorithm>
#include <random>
#include <set>
#include <type_traits>

#include "check.h"
#include "random_load.h"

namespace {

using tl::CapacityPolicy;
using tl::FinishReason;

// Invalid state transitions do not compile; states cannot be copied, so nothing is owned twice.
static_assert(!std::is_copy_constructible_v<tl::Running> && !std::is_copy_constructible_v<tl::Swapped>);
static_assert(!std::is_constructible_v<tl::Running, std::unique_ptr<tl::Request>, tl::Grant>);
template <typename State>
concept CanStart = requires(State s, tl::Grant grant) { tl::start(std::move(s), std::move(grant)); };
template <typename State>
concept CanPreempt = requires(State s) { tl::preempt(std::move(s)); };
static_assert(CanStart<tl::Waiting> && !CanStart<tl::Running> && !CanStart<tl::Swapped>);
static_assert(CanPreempt<tl::Running> && !CanPreempt<tl::Waiting> && !CanPreempt<tl::Swapped>);

TEST(random_load_max_utilization) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(48); ++seed) {
    const auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 2 + seed % 7, 16 + seed % 40, 80);
    run_random_load(seed, config,
                    {.num_blocks = 20 + static_cast<int>(seed % 25),
                     .num_host_blocks = seed % 2 ? 30 : 0,
                     .tokens_per_block = 4,
                     .enable_block_reuse = seed % 5 != 4},
                    totals);
  }
  CHECK(reaches(totals.recomputed, 40) && reaches(totals.swapped, 40) && reaches(totals.hit_tokens, 400) &&
        reaches(totals.failed, 20));
  CHECK(reaches(totals.found, 40) && reaches(totals.accepted, 400) && reaches(totals.rejected, 400) &&
        reaches(totals.late, 400) && reaches(totals.lent, 50));
}

TEST(random_load_guaranteed_no_evict) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(20); ++seed) {
    const auto config = scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 2 + seed % 7, 16 + seed % 40, 80);
    run_random_load(seed, config, {.num_blocks = 20 + static_cast<int>(seed % 25), .tokens_per_block = 4}, totals);
  }
  CHECK(reaches(totals.hit_tokens, 500) && reaches(totals.found, 50) && reaches(totals.late, 100) &&
        reaches(totals.lent, 20));
}

TEST(random_load_without_chunked_context) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(15); ++seed) {
    auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 2 + seed % 7, 80, 80);
    config.enable_chunked_context = false;
    run_random_load(seed, config, {.num_blocks = 20 + static_cast<int>(seed % 25), .tokens_per_block = 4}, totals);
  }
}

TEST(random_load_of_stages) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(60); ++seed) {
    const auto policy = seed % 3 ? CapacityPolicy::kMaxUtilization : CapacityPolicy::kGuaranteedNoEvict;
    const auto config = scheduler_config(policy, 2 + seed % 7, 16 + seed % 40, 80);
    run_random_load(seed, config,
                    {.num_blocks = 20 + static_cast<int>(seed % 25),
                     .num_host_blocks = seed % 2 ? 30 : 0,
                     .tokens_per_block = 4,
                     .enable_block_reuse = seed % 5 != 4},
                    totals, 2 + static_cast<int>(seed % 3));
  }
  CHECK(reaches(totals.recomputed, 20) && reaches(totals.swapped, 20) && reaches(totals.hit_tokens, 400) &&
        reaches(totals.failed, 20));
  CHECK(reaches(totals.found, 20) && reaches(totals.accepted, 200) && reaches(totals.rejected, 200));
}

// Every stage has a step while there are enough requests for all stages.
TEST(steps_fill_the_stages) {
  for (const int num_stages : {1, 2, 3, 4}) {
    for (const int num_requests : {1, num_stages, num_stages + 1, 4 * num_stages - 1}) {
      const auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 16, 64, 100);
      Driver driver(config, {.num_blocks = 500, .tokens_per_block = 4}, 0, num_stages);
      std::mt19937_64 random(3);
      for (int i = 0; i < num_requests; ++i) driver.submit(spec_of(random_tokens(random, 3), 60));
      int fewest = num_stages, most_rows = 0;
      driver.executor.on_wait = [&](const tl::StepBatch& batch) {
        if (driver.num_steps < 3 * num_stages || driver.num_steps > 40 * num_stages) return;
        fewest = std::min(fewest, driver.executor.num_in_flight() + 1);  // plus the step that was just taken out
        most_rows = std::max(most_rows, static_cast<int>(batch.rows.size()));
      };
      driver.run();
      CHECK(fewest == std::min(num_requests, num_stages));
      CHECK(most_rows == (num_requests + num_stages - 1) / num_stages);
    }
  }
}

TEST(chunks_of_a_prompt_fill_the_stages) {
  const auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 4, 8, 100);
  Driver driver(config, {.num_blocks = 50, .tokens_per_block = 4}, 0, 4);
  std::mt19937_64 random(3);
  driver.submit(spec_of(random_tokens(random, 64), 1));
  int most = 0;
  driver.executor.on_wait = [&](const tl::StepBatch&) { most = std::max(most, driver.executor.num_in_flight() + 1); };
  driver.run();
  CHECK(most == 5 && driver.num_steps == 8);
}

// Cache groups: the fake device checks every position that a window reaches, and overwrites blocks that are given back.
const std::vector<std::vector<int>> kGroups{{0, 6}, {0, 9, 9, 9}, {13}, {0, 1}, {0, 0, 5}, {17, 3}};

// Number of blocks that the longest sequence takes.
int blocks_of_one(const std::vector<tl::CacheSpec>& groups, const tl::SchedulerConfig& config) {
  return tl::KvGeometry(4, groups, config.max_num_tokens).most_blocks(79, 79);
}

TEST(random_load_max_utilization_of_cache_groups) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(54); ++seed) {
    const auto groups = with_windows(kGroups[seed % kGroups.size()]);
    const auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 2 + seed % 7, 16 + seed % 40, 80);
    run_random_load(seed, config,
                    {.num_blocks = blocks_of_one(groups, config) + static_cast<int>(seed % 20),
                     .num_host_blocks = seed % 2 ? 60 : 0,
                     .tokens_per_block = 4,
                     .enable_block_reuse = seed % 5 != 4,
                     .groups = groups},
                    totals);
  }
  CHECK(reaches(totals.recomputed, 20) && reaches(totals.swapped, 20) && reaches(totals.hit_tokens, 200) &&
        reaches(totals.failed, 20));
  CHECK(reaches(totals.found, 20) && reaches(totals.late, 200));
}

TEST(random_load_guaranteed_no_evict_of_cache_groups) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(30); ++seed) {
    const auto groups = with_windows(kGroups[seed % kGroups.size()]);
    const auto config = scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 2 + seed % 7, 16 + seed % 40, 80);
    run_random_load(seed, config,
                    {.num_blocks = blocks_of_one(groups, config) + static_cast<int>(seed % 20),
                     .tokens_per_block = 4,
                     .groups = groups},
                    totals);
  }
  CHECK(reaches(totals.hit_tokens, 250) && reaches(totals.found, 25));
}

// Recurrent layers beside attention: a sequence takes a run of blocks for its state, which moves with it to the host
// and back, and of which a copy is kept for others that begin like its prompt.
TEST(random_load_of_recurrent_layers) {
  Totals totals;
  for (std::uint64_t seed = 0; seed < rounds(60); ++seed) {
    auto groups = with_windows(seed % 3 == 2 ? std::vector<int>{0, 6} : std::vector<int>{0});
    groups.push_back(with_states(1 + static_cast<int>(seed % 10)));
    const auto policy = seed % 2 ? CapacityPolicy::kMaxUtilization : CapacityPolicy::kGuaranteedNoEvict;
    const auto config = scheduler_config(policy, 2 + seed % 7, 16 + seed % 40, 80);
    run_random_load(seed, config,
                    {.num_blocks = blocks_of_one(groups, config) + static_cast<int>(seed % 40),
                     .num_host_blocks = seed % 4 < 2 ? 80 : 0,
                     .tokens_per_block = 4,
                     .groups = groups},
                    totals);
  }
  CHECK(reaches(totals.recomputed, 20) && reaches(totals.swapped, 5));
  CHECK(reaches(totals.hit_tokens, 250));
}

// Requests run one at a time, so that they end in the order of service.
std::vector<tl::RequestId> order_of_service(const std::vector<int>& priorities, int window) {
  auto config = scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 1, 8, 16);
  config.ageing_window = window;
  Driver driver(config, {.num_blocks = 8, .tokens_per_block = 4});
  for (const int priority : priorities) {
    tl::RequestSpec spec = spec_of({1, 2}, 1);
    spec.priority = priority;
    driver.submit(spec);
  }
  driver.run();
  return driver.end_order;
}

TEST(later_arrivals_overtake_only_within_the_ageing_bound) {
  std::mt19937_64 random(7);
  for (const int window : {1, 3, 10}) {
    std::vector<int> priorities;
    for (int i = 0; i < 150; ++i) priorities.push_back(static_cast<int>(random() % 7) - 3);
    const auto order = order_of_service(priorities, window);
    for (std::size_t place = 0; place < order.size(); ++place) {
      const int priority = priorities[order[place] - 1];
      const auto overtook = std::count_if(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(place),
                                          [&](tl::RequestId other) { return other > order[place]; });
      CHECK(overtook <= (3 - priority) * window);
      for (std::size_t before = 0; before < place; ++before) {  // equal priorities by arrival
        if (priorities[order[before] - 1] == priority) CHECK(order[before] < order[place]);
      }
    }
  }
}

// Under any policy, cache pressure and mix of searches, a request is overtaken by at most as many later requests as the
// ageing of priorities allows. (The bound is 0 for the highest priority: no request of equal priority overtakes.)
TEST(every_request_is_admitted_within_its_bound) {
  std::int64_t num_overtaken = 0;
  for (int seed = 0; seed < static_cast<int>(rounds(24)); ++seed) {
    Load load(seed);
    auto config = scheduler_config(seed % 2 ? CapacityPolicy::kMaxUtilization : CapacityPolicy::kGuaranteedNoEvict,
                                   2 + seed % 5, 16, 64);
    config.ageing_window = 1 + seed % 6;
    Driver driver(config, {.num_blocks = 24, .num_host_blocks = seed % 3 * 4, .tokens_per_block = 4});
    std::vector<std::uint64_t> admitted;  // a request's seed is its index
    driver.executor.on_set_slot = [&](int, const tl::SlotParams* params) {
      const std::uint64_t number = dynamic_cast<const FakeParams*>(params)->seed;
      if (std::ranges::find(admitted, number) == admitted.end()) admitted.push_back(number);
    };
    std::vector<int> priorities;
    for (std::uint64_t number = 0; number < 80; ++number) {
      const Tokens prompt = random_tokens(load.random, 1 + load.draw(12));
      const int length = 1 + load.draw(20);
      tl::RequestSpec spec = load.draw(4) ? spec_of(prompt, length, number) : search_of(prompt, length, 2, number);
      priorities.push_back(spec.priority = load.draw(7) - 3);
      driver.submit(std::move(spec));
      if (load.draw(2)) driver.step();
    }
    driver.run();
    driver.check_all_returned();
    CHECK(admitted.size() == priorities.size());
    for (std::size_t place = 0; place < admitted.size(); ++place) {
      const auto overtook = std::count_if(admitted.begin(), admitted.begin() + static_cast<std::ptrdiff_t>(place),
                                          [&](std::uint64_t other) { return other > admitted[place]; });
      CHECK(overtook <= (3 - priorities[admitted[place]]) * config.ageing_window);
      num_overtaken += overtook > 0;
    }
  }
  CHECK(reaches(num_overtaken, 300));
}

TEST(an_endless_stream_of_urgent_requests_starves_nobody) {
  auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 2, 8, 32);
  config.ageing_window = 5;
  Driver driver(config, {.num_blocks = 8, .tokens_per_block = 4});
  tl::RequestSpec modest = spec_of(Tokens(20, 3), 6);
  modest.priority = -4;
  const tl::RequestId id = driver.submit(modest);
  int num_urgent = 0;
  for (; !driver.heard.at(id).end; driver.step()) {
    tl::RequestSpec urgent = spec_of({1, 2, 3}, 4);
    urgent.priority = 4;
    if (driver.scheduler.stats().num_waiting < 4) driver.submit(urgent), ++num_urgent;
  }
  CHECK(driver.heard.at(id).end->reason == FinishReason::kLength);
  CHECK(num_urgent <= 8 * 5 + 10);  // the bound, plus requests behind it in the queue and beside it in the batch
}

TEST(decode_is_never_starved_and_prefill_always_advances) {
  Load load(3);
  constexpr int kBudget = 12, kGenerated = 10;
  Driver driver(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 8, kBudget, 80),
                {.num_blocks = 200, .tokens_per_block = 4});
  std::map<std::uint32_t, int> decoding;  // requests whose prompt is computed -> number of tokens still to sample
  std::int64_t full_steps = 0;
  driver.on_step = [&](const tl::StepBatch& batch) {
    CHECK(std::ssize(batch.token_ids) <= kBudget);
    std::map<std::uint32_t, int> rows;
    int num_prefilling = 0;
    for (const tl::StepRow& row : batch.rows) {
      rows[row.request.index] = row.num_tokens;
      const bool decode = decoding.contains(row.request.index);
      CHECK(!decode || (num_prefilling == 0 && row.num_tokens == 1));  // decode rows come first
      num_prefilling += row.num_tokens > 1;
    }
    for (const auto& [index, left] : decoding) CHECK(rows.contains(index));
    // A prompt that is cut takes the rest of the token budget, and at least one token.
    for (const tl::StepRow& row : batch.rows) {
      if (!row.sample) CHECK(std::ssize(batch.token_ids) == kBudget);
      full_steps += !row.sample;
      if (row.sample && row.num_generated == 0) decoding[row.request.index] = kGenerated;
      if (row.sample && --decoding[row.request.index] == 0) decoding.erase(row.request.index);
    }
  };
  for (int i = 0; i < 100; ++i) {
    driver.submit(spec_of(random_tokens(load.random, 1 + load.draw(60)), kGenerated, load.random()));
    driver.step();
  }
  driver.run();
  driver.check_all_returned();
  CHECK(full_steps > 50);
}

TEST(a_long_prompt_gets_its_step_without_chunked_context) {
  auto config = scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 4, 32, 64);
  config.enable_chunked_context = false;
  Driver driver(config, {.num_blocks = 80, .tokens_per_block = 4});
  int steps_without_decode = 0;
  bool last_without = false;
  driver.on_step = [&](const tl::StepBatch& batch) {
    const bool without = batch.num_decode_tokens == 0;
    CHECK(!(without && last_without) || driver.num_steps < 3);
    steps_without_decode += without;
    last_without = without;
  };
  for (int i = 0; i < 3; ++i) driver.submit(spec_of({1, 2, i}, 40));
  for (int i = 0; i < 4; ++i) driver.step();
  const tl::RequestId id = driver.submit(spec_of(Tokens(32, 5), 4));
  for (int i = 0; i < 8; ++i) driver.step();
  CHECK(driver.heard.at(id).end);
  driver.run();
}

TEST(equal_prompts_are_computed_once) {
  Load load(11);
  const Tokens prompt = random_tokens(load.random, 41);
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 8, 64, 80),
                {.num_blocks = 100, .tokens_per_block = 4});
  for (int i = 0; i < 8; ++i) driver.submit(spec_of(prompt, 4, i));
  int prompt_tokens = 0;
  driver.on_step = [&](const tl::StepBatch& batch) {
    for (const tl::StepRow& row : batch.rows) prompt_tokens += row.num_generated == 0 ? row.num_tokens : 0;
  };
  driver.run();
  CHECK(prompt_tokens == 41 + 7);  // the other requests compute only the last token
  for (const auto& [id, request] : driver.heard) CHECK(request.tokens == request.expected());
}

TEST(a_later_turn_reuses_prompt_and_reply) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 4, 64, 80),
                {.num_blocks = 100, .tokens_per_block = 4});
  const tl::RequestId first = driver.submit(spec_of({1, 2, 3, 4, 5}, 20));
  driver.run();
  Tokens turn = driver.heard.at(first).spec.prompt;
  for (const std::int32_t token : driver.heard.at(first).tokens) turn.push_back(token);
  const tl::RequestId second = driver.submit(spec_of(turn, 2));
  driver.run();
  CHECK(driver.heard.at(second).end->timings.num_cached_tokens == 24);  // of 25: the last block is not full
}

TEST(preemption_takes_the_one_that_loses_least_and_never_the_first) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 3, 64, 64),
                {.num_blocks = 26, .tokens_per_block = 4, .enable_block_reuse = false});
  const tl::RequestId small_first = driver.submit(spec_of(Tokens(4, 1), 40));
  const tl::RequestId large = driver.submit(spec_of(Tokens(24, 2), 30));
  const tl::RequestId medium = driver.submit(spec_of(Tokens(12, 3), 30));
  driver.run();
  driver.check_all_returned();
  CHECK(driver.heard.at(small_first).end->timings.num_preemptions == 0);
  CHECK(driver.heard.at(medium).end->timings.num_preemptions > 0);
  CHECK(driver.heard.at(large).end->timings.num_preemptions == 0);
}

TEST(swap_or_recompute_follows_the_measured_cost) {
  for (const bool copies_are_cheap : {true, false}) {
    Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 4, 64, 64),
                  {.num_blocks = 20, .num_host_blocks = 40, .tokens_per_block = 4, .enable_block_reuse = false});
    driver.executor.seconds_per_token = 1e-3;
    driver.executor.seconds_per_copy = copies_are_cheap ? 1e-5 : 1;
    for (int i = 0; i < 24; ++i) driver.submit(spec_of(Tokens(10, i), 40, i));
    driver.run();
    driver.check_all_returned();
    const tl::SchedulerStats stats = driver.scheduler.stats();
    if (copies_are_cheap) CHECK(stats.num_swap_preemptions > 0 && stats.num_recompute_preemptions == 0);
    // The first swap shows the scheduler that copies are expensive on this device.
    if (!copies_are_cheap) CHECK(stats.num_swap_preemptions <= 3 && stats.num_recompute_preemptions > 0);
  }
}

TEST(a_quarter_of_the_memory_costs_little_work) {
  Load load(5);
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 64, 256, 160),
                {.num_blocks = 64 * 40 / 4, .tokens_per_block = 4});
  for (int i = 0; i < 256; ++i) {
    driver.submit(spec_of(random_tokens(load.random, 20 + load.draw(60)), 20 + load.draw(60), i));
  }
  driver.run();
  driver.check_all_returned();
  const tl::SchedulerStats stats = driver.scheduler.stats();
  CHECK(stats.num_recomputed_tokens * 20 < stats.num_scheduled_tokens);  // under 5 %
}

TEST(one_bad_row_ends_one_request) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 4, 64, 64),
                {.num_blocks = 60, .tokens_per_block = 4});
  driver.executor.row_error = [](const tl::StepRow& row) {
    return row.past_len == 17 ? std::string("logits are not finite") : std::string();
  };
  const tl::RequestId good = driver.submit(spec_of({1, 2}, 12));
  const tl::RequestId bad = driver.submit(spec_of({3, 4}, 40));
  const tl::RequestId also_good = driver.submit(spec_of({5, 6}, 12));
  driver.run();
  driver.check_all_returned();
  CHECK(driver.heard.at(bad).end->reason == FinishReason::kError);
  CHECK(driver.heard.at(bad).end->message == "logits are not finite");
  for (const tl::RequestId id : {good, also_good}) CHECK(driver.heard.at(id).end->reason == FinishReason::kLength);
  // Blocks that the failed request computed are not offered to other requests.
  Tokens prompt{3, 4};
  for (const std::int32_t token : driver.heard.at(bad).tokens) prompt.push_back(token);
  driver.executor.row_error = [](const tl::StepRow&) { return std::string(); };
  const tl::RequestId again = driver.submit(spec_of(prompt, 2));
  driver.run();
  CHECK(driver.heard.at(again).end->timings.num_cached_tokens == 0);
}

// The step that fails a request is in flight when the request is preempted, which keeps the request's blocks for reuse.
TEST(what_a_failed_step_wrote_is_forgotten_after_a_preemption) {
  for (const int num_host_blocks : {0, 40}) {
    Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 3, 64, 64),
                  {.num_blocks = 26, .num_host_blocks = num_host_blocks, .tokens_per_block = 4});
    driver.executor.seconds_per_token = 1e-3;
    driver.executor.seconds_per_copy = 1e-6;
    driver.submit(spec_of(Tokens(4, 1), 40));
    driver.submit(spec_of(Tokens(24, 2), 30));
    const Tokens prompt(12, 3);
    const tl::RequestId bad = driver.submit(spec_of(prompt, 30));
    int bad_slot = -1;
    bool preempted = false;
    driver.on_step = [&](const tl::StepBatch&) {
      const tl::SchedulerStats stats = driver.scheduler.stats();
      preempted = stats.num_recompute_preemptions + stats.num_swap_preemptions > 0;
    };
    driver.executor.on_set_slot = [&](int slot, const tl::SlotParams*) {
      bad_slot = slot;
    };  // the last call is for `bad`, which was submitted last
    driver.executor.row_error = [&](const tl::StepRow& row) {
      return preempted && row.slot == bad_slot ? std::string("NaN") : std::string();
    };
    while (!driver.heard.at(bad).end) CHECK(driver.step());
    CHECK(driver.heard.at(bad).end->reason == FinishReason::kError);
    CHECK(driver.heard.at(bad).end->timings.num_preemptions == 1);
    driver.executor.row_error = [](const tl::StepRow&) { return std::string(); };
    driver.executor.on_set_slot = [](int, const tl::SlotParams*) {};
    driver.run();
    const tl::RequestId again = driver.submit(spec_of(prompt, 2));
    driver.run();
    CHECK(driver.heard.at(again).end->timings.num_cached_tokens == 0);
  }
}

TEST(a_request_the_executor_refuses_ends_alone) {
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 4, 64, 64),
                {.num_blocks = 60, .tokens_per_block = 4});
  driver.executor.on_set_slot = [](int, const tl::SlotParams* params) {
    if (dynamic_cast<const FakeParams*>(params)->seed == 13) throw std::runtime_error("grammar does not compile");
    if (dynamic_cast<const FakeParams*>(params)->seed == 17) throw 17;
  };
  const tl::RequestId good = driver.submit(spec_of({1, 2}, 12));
  const tl::RequestId bad = driver.submit(spec_of({3, 4}, 12, 13));
  const tl::RequestId strange = driver.submit(spec_of({3, 4}, 12, 17));
  driver.run();
  driver.check_all_returned();
  CHECK(driver.heard.at(strange).end->reason == FinishReason::kError);
  CHECK(driver.heard.at(bad).end->message == "grammar does not compile" && driver.heard.at(bad).tokens.empty());
  CHECK(driver.heard.at(good).end->reason == FinishReason::kLength);
}

TEST(a_reset_ends_everything_and_leaves_a_working_scheduler) {
  Load load(21);
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 4, 32, 80),
                {.num_blocks = 24, .num_host_blocks = 20, .tokens_per_block = 4});
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 10; ++i) driver.submit(load.request());
    for (int i = load.draw(40); i > 0; --i) driver.step();
    driver.reset();
    driver.check_all_returned();
  }
  driver.submit(load.request());
  driver.run();
  CHECK(driver.heard.rbegin()->second.end->reason == FinishReason::kLength);
}

TEST(end_ids_stop_sequences_and_min_tokens) {
  const Tokens prompt{1, 2, 3};
  const Tokens all = reference(prompt, 0, 10);
  Driver driver(scheduler_config(CapacityPolicy::kMaxUtilization, 8, 64, 64),
                {.num_blocks = 60, .tokens_per_block = 4});
  const auto submit = [&](auto&& change) {
    tl::RequestSpec spec = spec_of(prompt, 10);
    change(spec);
    return driver.submit(spec);
  };
  const auto end_id = submit([&](auto& s) { s.end_ids = {all[4], 999999}; });
  const auto stop = submit([&](auto& s) { s.stop_sequences = {{7, 7}, {all[2], all[3]}}; });
  const auto late = submit([&](auto& s) { s.end_ids = {all[4]}, s.min_new_tokens = 6; });
  const auto prompt_tail = submit([&](auto& s) { s.stop_sequences = {{3, all[0]}}; });  // the prompt does not count
  driver.run();
  CHECK(driver.heard.at(end_id).end->reason == FinishReason::kEndId && driver.heard.at(end_id).tokens.size() == 5);
  CHECK(driver.heard.at(stop).end->reason == FinishReason::kStopSequence && driver.heard.at(stop).tokens.size() == 4);
  CHECK(driver.heard.at(late).end->reason == FinishReason::kLength);
  CHECK(driver.heard.at(prompt_tail).end->reason == FinishReason::kLength);
}

TEST(contradictory_configs_are_refused) {
  FakeExecutor executor({.num_slots = 4});
  const tl::KvManagerConfig cache{.num_blocks = 20, .tokens_per_block = 4};
  const auto make = [&](tl::SchedulerConfig config) { tl::Scheduler scheduler(config, cache, executor); };
  const auto base = scheduler_config(CapacityPolicy::kMaxUtilization, 4, 16, 64);
  auto c = base;
  CHECK_THROWS(std::invalid_argument, (c.max_num_tokens = 3, make(c)),
               "max_num_tokens (3) must be at least max_batch_size (4)");
  c = base;
  CHECK_THROWS(std::invalid_argument, (c.max_seq_len = 82, make(c)),
               "takes 21 blocks of 4 tokens, and the KV cache has 20");
  c = base;
  CHECK_THROWS(std::invalid_argument, (c.max_batch_size = 5, make(c)), "slots (4)");
  c = base;
  CHECK_THROWS(std::invalid_argument, (c.enable_chunked_context = false, make(c)), "enable chunked context");
}

}  // namespace
