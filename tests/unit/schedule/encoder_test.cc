// Which texts an encoder's steps take, and in which order: limits, fairness, priorities, ends, failures.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "encoder_driver.h"

namespace {

constexpr tl::EncoderConfig kConfig{.max_batch_size = 4, .max_num_tokens = 40, .max_input_len = 30};

std::vector<int> lengths_of(const tl::StepBatch& batch) {
  std::vector<int> lengths;
  for (const tl::StepRow& row : batch.rows) lengths.push_back(row.num_tokens);
  return lengths;
}

// Records the lengths of the texts of each step.
std::vector<std::vector<int>> lengths_of_steps(EncoderDriver& driver) {
  std::vector<std::vector<int>> steps;
  driver.on_step = [&](const tl::StepBatch& batch) { steps.push_back(lengths_of(batch)); };
  driver.run();
  return steps;
}

TEST(steps_take_texts_up_to_their_limits) {
  EncoderDriver driver(kConfig);
  for (const int length : {9, 30, 11, 5, 5, 5, 5, 5}) driver.submit(length);
  const std::vector<std::vector<int>> expected{{9, 30}, {11, 5, 5, 5}, {5, 5}};
  CHECK(lengths_of_steps(driver) == expected);  // no text passes the one that does not fit
  CHECK(driver.planner.stats().num_scheduled_tokens == 75);
  for (const auto& [_, text] : driver.heard) text.check();
}

TEST(flows_take_turns) {
  EncoderDriver driver(kConfig);
  for (int i = 0; i < 4; ++i) driver.submit(6, 1);
  for (int i = 0; i < 2; ++i) driver.submit(7, 2);
  const std::vector<std::vector<int>> expected{{6, 7, 6, 7}, {6, 6}};
  CHECK(lengths_of_steps(driver) == expected);
}

// No flow that always waits is served more than another by more than a text of each; a text that comes alone is
// computed soon.
TEST(flows_are_served_alike) {
  for (std::uint64_t seed = 0; seed < rounds(40); ++seed) {
    std::mt19937_64 random(seed);
    EncoderDriver driver(kConfig);
    const int num_flows = 2 + static_cast<int>(random() % 4);
    std::map<std::uint64_t, int> served, longest, left;
    for (int flow = 0; flow < num_flows; ++flow) {
      served[flow] = longest[flow] = 0;
      left[flow] = 60;
      const int most = 1 + static_cast<int>(random() % 30);
      for (int i = 0; i < left[flow]; ++i) {
        const int length = 1 + static_cast<int>(random() % static_cast<std::uint64_t>(most));
        longest[flow] = std::max(longest[flow], length);
        driver.submit(length, flow);
      }
    }
    driver.on_step = [&](const tl::StepBatch& batch) {
      for (const tl::StepRow& row : batch.rows) {
        const auto id = static_cast<tl::RequestId>(batch.token_ids[static_cast<std::size_t>(row.first_token)]);
        const std::uint64_t flow = driver.heard.at(id).spec.flow;
        served[flow] += row.num_tokens;
        --left[flow];
      }
      for (int a = 0; a < num_flows; ++a) {
        for (int b = 0; b < num_flows; ++b) {
          if (left[a] > 0 && left[b] > 0) CHECK(served[a] - served[b] <= longest[a] + longest[b]);
        }
      }
    };
    for (int i = 0; i < 5; ++i) driver.step();
    const tl::RequestId alone = driver.submit(5, 99);
    for (int i = 0; i < num_flows * 8 && !driver.heard.at(alone).end; ++i) driver.step();
    driver.heard.at(alone).check();
    left[99] = 0;
    driver.run();
    for (const auto& [_, text] : driver.heard) text.check();
  }
}

// Long calls end while single texts keep coming.
TEST(single_texts_do_not_starve_a_flow) {
  EncoderDriver driver(kConfig);
  tl::RequestId last = 0;
  for (int i = 0; i < 30; ++i) last = driver.submit(20, 1);
  std::uint64_t flow = 2;
  int num_later = 0;
  while (!driver.heard.at(last).end) {
    for (; std::ssize(driver.heard) - std::ssize(driver.end_order) < 36; ++num_later) driver.submit(25, flow++);
    CHECK(num_later < 2000);
    driver.step();
  }
  CHECK(num_later > 20);
  driver.run();
}

TEST(texts_of_a_greater_priority_are_first_until_others_have_aged) {
  EncoderDriver driver({.max_batch_size = 1, .max_num_tokens = 10, .max_input_len = 10, .ageing_window = 8});
  const tl::RequestId low = driver.submit(10, 1, -1), usual = driver.submit(10, 1), high = driver.submit(10, 1, 1);
  driver.run();
  CHECK((driver.end_order == std::vector<tl::RequestId>{high, usual, low}));
  const tl::RequestId aged = driver.submit(10, 1, -1);
  int num_before = 0;
  for (std::uint64_t flow = 10; !driver.heard.at(aged).end; ++flow, ++num_before) {
    CHECK(num_before < 100);
    driver.submit(10, flow);
    driver.step();
  }
  CHECK(num_before > 8);  // two flows wait at a time, so that virtual time goes half as fast
  driver.run();
}

TEST(steps_take_no_more_tokens_than_their_time_allows) {
  tl::EncoderConfig config{.max_batch_size = 50, .max_num_tokens = 400, .max_input_len = 300};
  config.step_seconds = 0.1;
  config.least_tokens = 8;
  EncoderDriver driver(config);
  driver.executor.seconds_per_token = 1e-3;
  for (int i = 0; i < 60; ++i) driver.submit(i == 50 ? 300 : 10);
  int num_full = 0;
  driver.on_step = [&](const tl::StepBatch& batch) {
    CHECK(batch.awaited && (batch.rows.size() == 1 || std::ssize(batch.token_ids) <= 100));
    num_full += batch.token_ids.size() == 100;
  };
  driver.run();
  CHECK(num_full >= 4);
}

// Without a time limit, too.
TEST(long_steps_are_awaited) {
  for (const double seconds_per_token : {0.1e-3, 0.2e-3}) {
    EncoderDriver driver(kConfig);
    driver.executor.seconds_per_token = seconds_per_token;
    for (int i = 0; i < 20; ++i) driver.submit(10);
    int num_awaited = 0;
    driver.on_step = [&](const tl::StepBatch& batch) { num_awaited += batch.awaited; };
    driver.run();
    CHECK(driver.num_steps == 5 && num_awaited == (seconds_per_token > 0.15e-3 ? 3 : 0));
  }
}

constexpr tl::StepBounds kBeside{.max_rows = 3, .max_tokens = 10};

// A driver whose steps with texts of more than 10 tokens pause after 5 of their tokens.
struct PausingDriver : EncoderDriver {
  explicit PausingDriver(bool runs_while_paused = false, double seconds_per_token = 1e-3)
      : EncoderDriver({.max_batch_size = 4,
                       .max_num_tokens = 80,
                       .max_input_len = 40,
                       .step_seconds = runs_while_paused ? 0 : 0.08,
                       .slice_seconds = 0.005},
                      kBeside, runs_while_paused) {
    executor.seconds_per_token = seconds_per_token;
    on_step = [this](const tl::StepBatch& batch) {
      turns += "AB>"[static_cast<int>(batch.turn)];
      steps.push_back(lengths_of(batch));
    };
  }

  std::string turns;  // A: anew, B: beside a paused step, >: it goes on
  std::vector<std::vector<int>> steps;
};

TEST(short_texts_are_computed_beside_long_ones) {
  PausingDriver driver;
  driver.submit(20, 1);
  driver.step();
  for (int flow = 2; flow < 6; ++flow) driver.submit(3, flow);
  driver.run();
  // The slice after nine short tokens takes their time.
  CHECK(driver.turns == "AB>B>>");
  CHECK((driver.steps == std::vector<std::vector<int>>{{20}, {3, 3, 3}, {20}, {3}, {20}, {20}}));
  CHECK((driver.end_order == std::vector<tl::RequestId>{2, 3, 4, 5, 1}));
  for (const auto& [_, text] : driver.heard) text.check();
  CHECK(driver.planner.stats().num_scheduled_tokens == 32);
}

TEST(a_step_pauses_for_nobody_too) {
  PausingDriver driver;
  driver.submit(20, 1);
  driver.run();
  CHECK(driver.turns == "A>>>");
}

TEST(only_short_texts_of_others_and_of_no_lower_priority_pass) {
  PausingDriver driver;
  driver.submit(20, 1);
  driver.step();
  driver.submit(11, 2);
  driver.submit(2, 1);
  driver.submit(4, 3, -1);
  driver.submit(3, 4, 1);
  driver.run();
  CHECK(driver.turns.starts_with("AB>>>A"));
  CHECK(driver.steps[1] == std::vector<int>{3});
  for (const auto& [_, text] : driver.heard) text.check();
}

TEST(long_texts_share_no_step_with_short_ones_of_others) {
  PausingDriver driver;
  driver.submit(20, 1);
  driver.submit(30, 2);
  driver.submit(5, 3);
  driver.run();
  CHECK(driver.turns.starts_with("AB>"));
  CHECK((driver.steps[0] == std::vector<int>{20, 30} && driver.steps[1] == std::vector<int>{5}));
  driver.steps.clear();
  driver.submit(5, 3);
  driver.submit(30, 2);
  driver.submit(6, 2);
  driver.run();
  CHECK((driver.steps[0] == std::vector<int>{5} && driver.steps[1] == std::vector<int>{30, 6}));
  for (const auto& [_, text] : driver.heard) text.check();
}

// However many short texts come, a long one has half of the time.
TEST(short_texts_do_not_starve_a_long_one) {
  PausingDriver driver;
  const tl::RequestId id = driver.submit(40, 1);
  std::uint64_t flow = 2;
  int num_beside = 0;
  driver.on_step = [&](const tl::StepBatch& batch) {
    if (batch.turn == tl::StepTurn::kBeside) num_beside += static_cast<int>(batch.token_ids.size());
  };
  driver.step();
  while (!driver.heard.at(id).end) {
    for (int i = 0; i < 3; ++i) driver.submit(3, flow++);
    driver.step();
  }
  CHECK(num_beside >= 27 && num_beside <= 40);
  driver.run();
}

TEST(a_paused_step_that_nobody_waits_for_is_given_up) {
  PausingDriver driver;
  const tl::RequestId id = driver.submit(20, 1);
  driver.submit(25, 1);
  driver.step();
  driver.step();
  driver.end(id, tl::FinishReason::kCancelled);
  driver.step();
  CHECK(driver.turns == "A>");  // of the other text
  driver.end(2, tl::FinishReason::kTimedOut);
  driver.submit(30, 2);
  driver.run();
  CHECK(driver.turns.starts_with("A>A>") && driver.steps.back() == std::vector<int>{30});
  for (const auto& [_, text] : driver.heard) text.check();
}

TEST(short_texts_are_computed_while_a_paused_step_runs_on) {
  PausingDriver driver(true);
  driver.submit(20, 1);
  for (int i = 0; i < 3; ++i) driver.step();
  CHECK(driver.turns == "A>");  // others may have waited at its launch
  for (int flow = 2; flow < 6; ++flow) driver.submit(3, flow);
  driver.run();
  CHECK(driver.turns == "A>B>B>>");
  CHECK((driver.end_order == std::vector<tl::RequestId>{2, 3, 4, 5, 1}));
  for (const auto& [_, text] : driver.heard) text.check();
}

TEST(long_texts_pass_short_ones_that_are_computed_beside_them) {
  PausingDriver driver(true);
  for (const int length : {20, 3, 30}) driver.submit(length, static_cast<std::uint64_t>(length));
  driver.submit(4, 4, -1);  // it may not pass them
  driver.submit(12, 5, -1);
  driver.run();
  CHECK((driver.steps[0] == std::vector<int>{20, 30} && driver.steps[1] == std::vector<int>{3}));
  CHECK((driver.end_order == std::vector<tl::RequestId>{2, 1, 3, 4, 5}));
  for (const auto& [_, text] : driver.heard) text.check();
}

// Short texts come all the time.
TEST(the_end_of_a_step_that_runs_on_is_seen) {
  PausingDriver driver(true);
  const tl::RequestId id = driver.submit(40, 1);
  driver.step();
  std::uint64_t flow = 2;
  int num_beside = 0;
  driver.on_step = [&](const tl::StepBatch& batch) {
    if (batch.turn == tl::StepTurn::kBeside) num_beside += static_cast<int>(batch.token_ids.size());
  };
  while (!driver.heard.at(id).end) {
    for (int i = 0; i < 3; ++i) driver.submit(3, flow++);
    driver.step();
  }
  CHECK(num_beside >= 40 && num_beside < 50);
  driver.run();
}

TEST(a_step_that_runs_on_is_never_given_up) {
  PausingDriver driver(true);
  const tl::RequestId id = driver.submit(20, 1);
  driver.step();
  driver.end(id, tl::FinishReason::kCancelled);
  const tl::RequestId same_flow = driver.submit(3, 1), longer = driver.submit(30, 2);
  driver.run();
  CHECK(driver.turns.starts_with("AB>"));
  CHECK((driver.end_order == std::vector<tl::RequestId>{id, same_flow, longer}));
  for (const auto& [_, text] : driver.heard) text.check();
}

// The device need not wait for the host between quick steps of long texts, unless short ones wait.
TEST(quick_steps_of_long_texts_follow_each_other_at_once) {
  for (const double seconds_per_token : {0.05e-3, 1e-3}) {
    for (const bool with_short : {false, true}) {
      PausingDriver driver(true, seconds_per_token);
      driver.submit(40, 1);
      driver.run();
      for (int i = 0; i < 6; ++i) driver.submit(40, 1);
      if (with_short) driver.submit(3, 2, -1);
      std::vector<bool> paused;
      driver.on_step = [&](const tl::StepBatch& batch) {
        if (batch.turn == tl::StepTurn::kAnew && batch.token_ids.size() == 80) paused.push_back(batch.pause_after > 0);
      };
      driver.run();
      const bool pauses = seconds_per_token == 1e-3 || with_short;
      CHECK((paused == std::vector<bool>{pauses, pauses, true}));  // nobody waits behind the last
      for (const auto& [_, text] : driver.heard) text.check();
    }
  }
}

TEST(failures_beside_a_paused_step) {
  for (const auto& [beside, runs] : {std::pair(true, false), {false, false}, {true, true}, {false, true}}) {
    PausingDriver driver(runs);
    driver.submit(20, 1);
    driver.step();
    driver.submit(3, 2);
    driver.submit(4, 3);
    driver.executor.on_wait = [beside = beside](const tl::StepBatch& batch) {
      if ((batch.turn == tl::StepTurn::kBeside) == beside) throw tl::StepError("device fault");
    };
    driver.run();
    for (const auto& [id, text] : driver.heard) {
      text.check();
      CHECK((text.end->reason == tl::FinishReason::kError) == ((id > 1) == beside));
    }
  }
}

TEST(a_failed_step_ends_its_texts_alone) {
  EncoderDriver driver(kConfig);
  for (int i = 0; i < 12; ++i) driver.submit(10);
  driver.executor.on_wait = [](const tl::StepBatch&) { throw tl::StepError("device fault"); };
  driver.run();
  int num_failed = 0;
  for (const auto& [id, text] : driver.heard) {
    text.check();
    num_failed += text.end->reason == tl::FinishReason::kError && text.end->message == "device fault";
    CHECK((text.end->reason == tl::FinishReason::kError) == (id <= 4));
  }
  CHECK(num_failed == 4);
}

TEST(reset_ends_all_texts) {
  EncoderDriver driver(kConfig);
  for (int i = 0; i < 9; ++i) driver.submit(10);
  tl::EventBatch events;
  driver.planner.reset("internal error", driver.now, events);
  driver.planner.check_integrity();
  CHECK(driver.planner.empty() && events.ends.size() == 9);
}

TEST(contradictory_encoders_are_refused) {
  const FakeEncoder executor(1, 1);
  const auto make = [&](const tl::EncoderConfig& config) { tl::EncoderPlanner(config, executor); };
  CHECK_THROWS(std::invalid_argument, make({.max_batch_size = 0, .max_num_tokens = 9, .max_input_len = 9}), "encoder");
  CHECK_THROWS(std::invalid_argument, make({.max_batch_size = 1, .max_num_tokens = 8, .max_input_len = 9}),
               "max_num_tokens (8) at least max_input_len (9)");
}

void run_random_texts(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  tl::EncoderConfig config{.max_batch_size = 1 + draw(6), .max_num_tokens = 10 + draw(40), .max_input_len = 10};
  config.ageing_window = 1 + draw(8);
  if (draw(2) > 0) config.step_seconds = 1e-3 * (1 + draw(20));
  config.least_tokens = 1 + draw(8);
  config.slice_seconds = 1e-3 * (1 + draw(5));
  const int most_beside = 2 + draw(7);
  const bool pauses = draw(2) > 0;
  EncoderDriver driver(config,
                       pauses ? tl::StepBounds{.max_rows = 1 + draw(4), .max_tokens = most_beside} : tl::StepBounds{},
                       draw(2) > 0);
  driver.executor.seconds_per_token = 1e-3;
  driver.executor.row_error = [&](const tl::StepRow&) { return draw(50) ? std::string() : std::string("NaN"); };
  for (int i = 0; i < 150; ++i) {
    if (draw(3) > 0) {
      tl::RequestSpec spec;
      for (int length = 1 + draw(10); length > 0; --length) spec.prompt.push_back(draw(1000));
      spec.max_new_tokens = 0;
      spec.flow = static_cast<std::uint64_t>(draw(5));
      spec.priority = draw(3) - 1;
      if (draw(5) == 0) spec.timeout = std::chrono::milliseconds(1 + draw(20));
      driver.submit(std::move(spec));
    }
    if (draw(6) == 0) {
      const auto id = 1 + static_cast<tl::RequestId>(draw(static_cast<int>(driver.heard.size()) + 1));
      driver.end(id, tl::FinishReason::kCancelled);
    }
    if (draw(30) == 0) {
      driver.executor.on_wait = [](const tl::StepBatch&) { throw tl::StepError("device fault"); };
    }
    if (draw(3) > 0) driver.step();
  }
  driver.executor.on_wait = [](const tl::StepBatch&) {};
  driver.run();
  for (const auto& [_, text] : driver.heard) text.check();
}

TEST(random_texts_end_once_and_are_never_cut) {
  for (std::uint64_t seed = 0; seed < rounds(400); ++seed) run_random_texts(seed);
}

}  // namespace
