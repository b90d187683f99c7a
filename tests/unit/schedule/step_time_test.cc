// Limits on the step time: prompts are cut to fit, short prompts overtake long ones, and late rows do not count.
#include "schedule/step_time.h"

#include <algorithm>
#include <map>

#include "check.h"
#include "driver.h"
#include "random_load.h"

namespace {

using tl::CapacityPolicy;
using tl::FinishReason;

constexpr int kTokensOfStep = 20, kLeastPrefill = 4;
constexpr double kSecondsPerToken = 2e-3;

tl::SchedulerConfig timed_config(int batch, int length) {
  tl::SchedulerConfig config = scheduler_config(CapacityPolicy::kGuaranteedNoEvict, batch, 400, length);
  config.step_seconds = kTokensOfStep * kSecondsPerToken;
  config.least_prefill = kLeastPrefill;
  return config;
}

// A driver whose device takes time, and which has run long enough that the scheduler knows the time of steps.
struct Timed {
  explicit Timed(const tl::SchedulerConfig& config) : driver(config, {.num_blocks = 1000, .tokens_per_block = 4}) {
    driver.executor.seconds_per_token = kSecondsPerToken;
    driver.submit(spec_of(Tokens(300, 1), 1));
    driver.run();
  }
  // Submits the request; returns how many steps it takes until it ends.
  int steps_until_end(tl::RequestSpec spec) {
    const tl::RequestId id = driver.submit(std::move(spec));
    int num_steps = 0;
    for (; !driver.heard.at(id).end; ++num_steps) driver.step();
    return num_steps;
  }
  Driver driver;
};

TEST(a_step_takes_its_time_at_most) {
  Timed timed(timed_config(8, 400));
  int num_full = 0;
  timed.driver.on_step = [&](const tl::StepBatch& batch) {
    const int most = std::max(kTokensOfStep - batch.num_decode_tokens, kLeastPrefill) + batch.num_decode_tokens;
    CHECK(std::ssize(batch.token_ids) <= most + 1);  // the measured time is close to the device's
    const bool is_full = std::ssize(batch.token_ids) >= most - 1;
    CHECK(batch.awaited || !is_full || batch.only_decodes() || batch.rows.back().sample);
    num_full += is_full;
  };
  Load load(5);
  for (int i = 0; i < 20; ++i) timed.driver.submit(spec_of(random_tokens(load.random, 60), 30, i));
  timed.driver.run();
  CHECK(num_full > 40);
  timed.driver.check_all_returned();
}

TEST(a_device_that_slows_down_gets_shorter_steps) {
  Timed timed(timed_config(2, 400));
  timed.driver.executor.seconds_per_token = 2 * kSecondsPerToken;
  std::vector<int> lengths;
  timed.driver.on_step = [&](const tl::StepBatch& batch) { lengths.push_back(std::ssize(batch.token_ids)); };
  timed.driver.submit(spec_of(Tokens(399, 2), 1));
  timed.driver.run();
  CHECK(lengths.front() >= kTokensOfStep - 1 && lengths[lengths.size() - 2] <= kTokensOfStep / 2 + 1);
}

TEST(a_short_prompt_waits_for_no_long_one) {
  Timed timed(timed_config(16, 400));
  const auto alone = timed.steps_until_end(spec_of({3, 1, 4, 1, 5}, 1));
  for (int i = 0; i < 10; ++i) timed.driver.submit(spec_of(Tokens(390, i), 4));
  for (int i = 0; i < 5; ++i) timed.driver.step();
  CHECK(timed.driver.scheduler.stats().num_waiting > 5);
  CHECK(timed.steps_until_end(spec_of({3, 1, 4, 1, 5, 9}, 1)) <= alone + 2);
  timed.driver.run();
  timed.driver.check_all_returned();
}

// A long prompt proceeds in the time that short ones leave, however many short ones come.
TEST(short_prompts_starve_no_long_one) {
  tl::SchedulerConfig config = timed_config(4, 400);
  config.ageing_window = 5;
  Timed timed(config);
  Driver& driver = timed.driver;
  const tl::RequestId first = driver.submit(spec_of(Tokens(390, 7), 4)),
                      second = driver.submit(spec_of(Tokens(390, 8), 4));
  driver.step();
  int num_short = 0;
  for (int i = 0; !driver.heard.at(second).end; ++i) {
    CHECK(i < 1000);
    if (driver.scheduler.stats().num_waiting < 4) driver.submit(spec_of({1, 2, 3, i % kVocab}, 3)), ++num_short;
    driver.step();
  }
  const auto& order = driver.end_order;
  const auto place = [&](tl::RequestId id) { return std::ranges::find(order, id) - order.begin(); };
  CHECK(place(first) < place(second) && num_short > 10);
  driver.run();
  driver.check_all_returned();
}

void let_be_late(Driver& driver, bool with_results) {
  driver.executor.late_with_results = with_results;
  driver.executor.is_late = [](const tl::StepRow&) { return true; };
  driver.executor.is_woken = [](int) { return false; };
}

void check_late_rows_are_few(bool with_results) {
  Driver driver(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 8, 40, 300),
                {.num_blocks = 600, .tokens_per_block = 4});
  let_be_late(driver, with_results);
  const tl::RequestId late = driver.submit(guided(spec_of({2, 7, 1}, 20, 5)));
  const tl::RequestId other = driver.submit(spec_of({2, 7, 2}, 200, 6));
  while (!driver.heard.at(other).end) driver.step();
  CHECK(driver.heard.at(late).tokens.empty() && !driver.heard.at(late).end);
  CHECK(driver.scheduler.stats().num_late_rows == (with_results ? 1 : 2));
  const tl::RequestId third = driver.submit(spec_of({2, 7, 3}, 200, 6));
  driver.step();
  driver.executor.is_late = [](const tl::StepRow&) { return false; };
  driver.executor.is_woken = [](int) { return true; };
  for (int i = 0; i < 60; ++i) driver.step();
  CHECK(driver.heard.at(late).end && !driver.heard.at(third).end);
  driver.run();  // run() also checks the tokens
  CHECK(driver.heard.at(late).end->reason == FinishReason::kLength);
  driver.check_all_returned();
}

TEST(a_late_request_has_few_rows_beside_others) { check_late_rows_are_few(false); }
TEST(a_request_that_results_call_late_has_few_rows_beside_others) { check_late_rows_are_few(true); }

void check_late_request_ends(bool with_results) {
  Driver driver(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 8, 40, 300),
                {.num_blocks = 600, .tokens_per_block = 4});
  let_be_late(driver, with_results);
  const tl::RequestId late = driver.submit(guided(spec_of({2, 7, 1}, 20, 5)));
  const auto begin = driver.now;
  while (!driver.heard.at(late).end) {
    driver.step();  // a request alone tries again in every step
    driver.now += std::chrono::milliseconds(500);
  }
  const tl::RequestEnd& end = *driver.heard.at(late).end;
  CHECK(end.reason == FinishReason::kError && end.message.find("within 10 seconds") != std::string::npos);
  const auto taken = driver.now - begin;
  CHECK(taken >= tl::kMostLate && taken < tl::kMostLate + std::chrono::seconds(3));
  driver.run();
  driver.check_all_returned();
}

TEST(a_request_that_stays_late_ends_with_an_error) { check_late_request_ends(false); }
TEST(a_request_that_results_call_late_for_long_ends_with_an_error) { check_late_request_ends(true); }

// A request that is late now and then must not end.
TEST(a_request_that_goes_on_may_be_late_again) {
  Driver driver(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, 8, 40, 300),
                {.num_blocks = 600, .tokens_per_block = 4});
  int num_asked = 0;
  driver.executor.is_late = [&](const tl::StepRow&) { return ++num_asked % 6 != 0; };
  const tl::RequestId id = driver.submit(guided(spec_of({2, 7, 1}, 20, 5)));
  for (; !driver.heard.at(id).end; driver.now += std::chrono::milliseconds(500)) driver.step();
  CHECK(driver.heard.at(id).end->reason == FinishReason::kLength);
}

}  // namespace
