// EventLoop: order of steps in flight, limits, cancellation and timeout in every state, failures, shutdown.
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "check.h"
#include "client.h"
#include "errors.h"

namespace {

using tl::FinishReason;
using tl::RequestId;

// Holds the device at its next wait until the gate opens.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --num_waiting_;
  }
  void close() { set(false); }
  void open() { set(true); }
  void wait_for_device() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_waiting_ > 0; });
  }

 private:
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int num_waiting_ = 0;
};

struct Service {
  explicit Service(tl::DecoderLoopConfig config = loop_config(), std::function<void(FakeExecutor&)> prepare = {})
      : Service(config, executor_for(config), prepare) {}
  Service(const tl::DecoderLoopConfig& config, std::pair<std::unique_ptr<FakeExecutor>, FakeExecutor*> executor,
          const std::function<void(FakeExecutor&)>& prepare)
      : loop(config, (guard(*executor.second, prepare), std::move(executor.first))), client(loop) {}
  ~Service() { gate.open(); }

  RequestId submit(Tokens prompt, int max_new_tokens = 8) {
    return loop.submit(spec_of(std::move(prompt), max_new_tokens));
  }
  // Submits all requests before the device takes its second step.
  std::vector<RequestId> submit_together(const std::vector<Tokens>& prompts, int max_new_tokens) {
    gate.close();
    std::vector<RequestId> ids;
    for (const Tokens& prompt : prompts) ids.push_back(submit(prompt, max_new_tokens));
    gate.open();
    return ids;
  }
  void guard(FakeExecutor& executor, const std::function<void(FakeExecutor&)>& prepare) {
    if (prepare) prepare(executor);
    executor.on_wait = [this, then = executor.on_wait](const tl::StepBatch& batch) {
      gate.pass();
      then(batch);
    };
  }
  void check_all_returned() {
    loop.shut_down(tl::Shutdown::kDrain);
    client.wait_until_closed();
    CHECK(loop.stats().scheduler.num_used_blocks == 0 && loop.stats().scheduler.num_running == 0);
  }

  Gate gate;
  tl::EventLoop loop;
  Client client;
};

TEST(steps_overlap_by_one) {
  std::vector<std::pair<char, std::uint64_t>> log;
  tl::DecoderLoopConfig config = loop_config();
  Service service(config, [&](FakeExecutor& executor) {
    executor.on_launch = [&](const tl::StepBatch& batch) { log.emplace_back('L', batch.step); };
    executor.on_wait = [&](const tl::StepBatch& batch) { log.emplace_back('W', batch.step); };
  });
  service.client.wait_for(service.submit({1, 2, 3}, 5));
  service.check_all_returned();
  CHECK(log.size() == 10);
  const std::vector<std::pair<char, std::uint64_t>> expected{{'L', 1}, {'L', 2}, {'W', 1}, {'L', 3}, {'W', 2},
                                                             {'L', 4}, {'W', 3}, {'L', 5}, {'W', 4}, {'W', 5}};
  CHECK(log == expected);
}

TEST(the_row_after_an_end_id_is_discarded) {
  const Tokens prompt{9, 8, 7};
  const Tokens all = reference(prompt, 0, 20);
  Service service;
  tl::RequestSpec spec = spec_of(prompt, 20);
  spec.end_ids = {all[6]};
  const RequestId id = service.loop.submit(spec);
  CHECK(service.client.wait_for(id).reason == FinishReason::kEndId);
  CHECK(service.client.tokens[id] == Tokens(all.begin(), all.begin() + 7));
  service.check_all_returned();
  CHECK(service.loop.stats().num_steps == 8 && service.loop.stats().num_generated_tokens == 7);
}

// Drafts change in which step a token comes, but not the token: the loop waits only for steps whose requests draft.
TEST(drafts_change_no_token) {
  tl::DecoderLoopConfig config = loop_config();
  config.scheduler.max_draft_len = 5;
  config.scheduler.drafter = fake_drafter();
  config.scheduler.paces_drafts = false;
  std::vector<char> log;
  Service service(config, [&](FakeExecutor& executor) {
    executor.on_launch = [&](const tl::StepBatch&) { log.push_back('L'); };
    executor.on_wait = [&](const tl::StepBatch&) { log.push_back('W'); };
  });
  std::map<RequestId, Heard> heard;
  for (std::uint64_t seed = 1; seed < 3; ++seed) {  // one drafter per seed
    tl::RequestSpec spec = spec_of({4, 5, 6}, 40, seed);
    const RequestId id = service.loop.submit(spec);
    service.client.wait_for(id);
    CHECK(service.client.tokens[id] == reference(spec.prompt, seed, 40));
  }
  service.check_all_returned();
  const auto [num_rows, drafted, accepted] = service.loop.stats().scheduler.drafts;
  CHECK(num_rows > 10 && accepted[0] > 10 && accepted[0] < drafted[0] && accepted[4] > 0);
  CHECK(service.loop.stats().num_steps < 70 && service.loop.stats().num_generated_tokens == 80);
  for (std::size_t i = 0; i < log.size(); ++i) CHECK(log[i] == (i % 2 ? 'W' : 'L'));
}

TEST(what_is_generated_ends_inside_accepted_drafts) {
  tl::DecoderLoopConfig config = loop_config();
  config.scheduler.max_draft_len = tl::kMaxDrafts;
  config.scheduler.drafter = fake_drafter();
  config.scheduler.paces_drafts = false;
  for (int place = 0; place < 12; ++place) {
    Service service(config);
    const Tokens all = reference({9, 8, 7}, 1, 20);
    tl::RequestSpec spec = spec_of({9, 8, 7}, 20, 1);
    spec.stop_sequences = {{all[static_cast<std::size_t>(place)], all[static_cast<std::size_t>(place) + 1]}};
    const RequestId id = service.loop.submit(spec);
    CHECK(service.client.wait_for(id).reason == FinishReason::kStopSequence);
    CHECK(service.client.tokens[id] == Tokens(all.begin(), all.begin() + place + 2));
    service.check_all_returned();
  }
}

TEST(a_full_loop_says_so_at_once) {
  tl::DecoderLoopConfig config = loop_config();
  config.max_requests = 3;
  Service service(config);
  const RequestId first = service.submit({1});
  service.submit({2});
  service.submit({3});
  CHECK_THROWS(tl::OverloadedError, service.submit({4}), "fewer than 3 sequences that wait or run, found 3: submit");
  service.client.wait_for(first);
  while (service.client.ends.size() < 3) service.client.poll();
  service.client.wait_for(service.submit({4}));
  service.check_all_returned();
  CHECK_THROWS(tl::LimitError, service.submit({5}), "shut down");
}

TEST(further_sequences_of_prompts_leave_room_for_first_ones) {
  tl::DecoderLoopConfig config = loop_config();
  config.max_requests = 4;
  Service service(config);
  const auto extra = [] {
    tl::RequestSpec spec = spec_of({1, 2}, 4);
    spec.extra = true;
    return spec;
  };
  service.loop.submit(extra());
  service.loop.submit(extra());
  CHECK_THROWS(tl::OverloadedError, service.loop.submit(extra()), "ask for fewer sequences of a prompt (n, best_of)");
  service.submit({3});
  service.submit({4});
  while (service.client.ends.size() < 4) service.client.poll();
  service.loop.submit(extra());
  while (service.client.ends.size() < 5) service.client.poll();
  service.check_all_returned();
}

TEST(requests_beyond_a_limit_are_refused_with_both_numbers) {
  Service service;
  const auto refused = [&](auto&& change, const char* part) {
    tl::RequestSpec spec = spec_of({1, 2, 3}, 8);
    change(spec);
    CHECK_THROWS(tl::LimitError, service.loop.submit(spec), part);
  };
  refused([](auto& s) { s.prompt.clear(); }, "prompt length in 1 .. 90, found 0");
  refused([](auto& s) { s.prompt.assign(91, 1); }, "prompt length in 1 .. 90, found 91");
  refused([](auto& s) { s.max_new_tokens = 98; }, "max_new_tokens in 1 .. 97, found 98");
  refused([](auto& s) { s.max_new_tokens = -1; }, "found -1");
  refused([](auto& s) { s.min_new_tokens = 9; }, "min_new_tokens in 0 .. 8");
  refused([](auto& s) { s.prompt[1] = kVocab; }, "0 .. 999, found 1000");
  refused([](auto& s) { s.prompt[1] = -1; }, "found -1");
  refused([](auto& s) { s.end_ids = {-5}; }, "end_ids");
  refused([](auto& s) { s.stop_sequences = {{}}; }, "stop sequence in 1 .. 256, found 0");
  refused([](auto& s) { s.priority = 101; }, "priority in -100 .. 100");
  refused([](auto& s) { s.timeout = tl::Clock::duration::zero(); }, "timeout above 0");
  refused([](auto& s) { s.cache_salt.assign(257, 'x'); }, "cache_salt");
  refused([](auto& s) { s.num_beams = 5; }, "num_beams in 1 .. 4, found 5");
  refused([](auto& s) { s.num_beams = -1; }, "found -1");
  refused([](auto& s) { s.num_beams = 4, s.prompt.assign(10, 1), s.max_new_tokens = 80; },
          "64 blocks of 4 tokens, found 4 beams that may need 87 blocks");
  refused([](auto& s) { s.num_beams = 2, s.stop_sequences = {{1}}; }, "no stop sequences");
  CHECK(!service.loop.cancel(12345));
}

TEST(a_search_delivers_what_it_found_with_its_end) {
  Service service;
  const tl::RequestSpec spec = search_of({1, 2, 3}, 12, 4);
  const RequestId id = service.loop.submit(spec);
  service.client.wait_for(id);
  CHECK(service.client.tokens[id].empty());
  CHECK(service.client.found[id] == reference_search(spec.prompt, dynamic_cast<const FakeParams&>(*spec.params)));
  service.check_all_returned();
}

TEST(an_executor_that_searches_on_is_stopped) {
  Service service;
  tl::RequestSpec spec = search_of({1, 2, 3}, 12, 4);
  spec.max_new_tokens = 2;
  CHECK(std::strstr(service.client.wait_for(service.loop.submit(spec)).message.c_str(), "after max_new_tokens"));
  CHECK(service.client.wait_for(service.submit({5, 5}, 6)).reason == FinishReason::kLength);
  service.check_all_returned();
}

// The launch of a step fails while the previous step is in flight; that step's results then make the scheduler throw.
TEST(a_launch_that_fails_beside_an_error_of_the_loop_is_not_waited_for) {
  for (const std::uint64_t failing : {2, 3, 4, 5, 6, 7}) {
    std::atomic<bool> faulty = true;
    Service service(loop_config(), [failing, &faulty](FakeExecutor& executor) {
      executor.on_launch = [failing, &faulty](const tl::StepBatch& batch) {
        if (faulty && batch.step == failing) throw tl::StepError("launch");
      };
    });
    service.gate.close();
    const RequestId ordinary = service.submit({5, 5}, 30);
    tl::RequestSpec spec = search_of({1, 2, 3}, 12, 2);
    spec.max_new_tokens = 2;
    const RequestId search = service.loop.submit(spec);
    service.gate.open();
    CHECK(service.client.wait_for(search).reason == FinishReason::kError);
    CHECK(service.client.wait_for(ordinary).reason == FinishReason::kError);
    faulty = false;
    CHECK(service.client.wait_for(service.submit({5, 5}, 6)).reason == FinishReason::kLength);
    service.check_all_returned();
  }
}

TEST(cancel_in_every_state) {
  tl::DecoderLoopConfig config = loop_config(2);
  Service service(config);
  service.gate.close();
  const RequestId running = service.submit({1}, 50);
  const RequestId other = service.submit({2}, 50);
  service.gate.wait_for_device();  // a step is in flight
  const RequestId queued = service.submit({3}, 50);
  const RequestId in_mailbox = service.submit({4}, 50);
  for (const RequestId id : {running, queued, in_mailbox, queued}) CHECK(service.loop.cancel(id));
  service.gate.open();
  for (const RequestId id : {running, queued, in_mailbox}) {
    CHECK(service.client.wait_for(id).reason == FinishReason::kCancelled);
    CHECK(!service.loop.cancel(id));  // the request has ended and its end was polled
  }
  CHECK(service.client.wait_for(other).reason == FinishReason::kLength);
  CHECK(service.client.tokens[other] == reference({2}, 0, 50));
  service.check_all_returned();
}

TEST(held_requests_start_in_one_step) {
  Service service;
  service.loop.hold();
  service.loop.hold();  // by another thread
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(service.submit({i}, 10));
  CHECK(service.loop.cancel(ids[2]));
  service.loop.release();
  CHECK(service.client.ends.empty() && service.loop.stats().num_steps == 0);
  service.loop.release();
  for (int i = 0; i < 3; ++i) {
    const auto reason = service.client.wait_for(ids[i]).reason;
    CHECK(reason == (i == 2 ? FinishReason::kCancelled : FinishReason::kLength));
  }
  CHECK(service.loop.stats().num_steps == 10);
  service.check_all_returned();
}

TEST(no_more_are_held_than_a_step_can_start_and_none_by_a_shutdown) {
  Service service(loop_config(2));
  service.loop.hold();
  for (const RequestId id : {service.submit({1}), service.submit({2})}) service.client.wait_for(id);
  const RequestId last = service.submit({3});
  service.loop.shut_down(tl::Shutdown::kDrain);
  CHECK(service.client.wait_for(last).reason == FinishReason::kLength);
  service.client.wait_until_closed();
}

TEST(blocks_are_back_within_a_step_of_a_cancellation) {
  Service service;
  const RequestId id = service.submit(Tokens(80, 1), 20);
  service.client.wait_for_token(id);
  service.loop.cancel(id);
  service.client.wait_for(id);
  const auto steps = service.loop.stats().num_steps;
  while (service.loop.stats().scheduler.num_used_blocks > 0) service.client.poll(std::chrono::milliseconds(1));
  CHECK(service.loop.stats().num_steps <= steps + 1);
}

TEST(timeouts_end_waiting_and_running_requests) {
  std::atomic<int> steps = 0;  // each takes 10 ms on the loop's clock, which stands still otherwise
  tl::DecoderLoopConfig config = loop_config(1);
  config.clock = [&] { return tl::Clock::time_point(std::chrono::milliseconds(10 * steps)); };
  Service service(config, [&](FakeExecutor& executor) { executor.on_wait = [&](const tl::StepBatch&) { ++steps; }; });
  service.gate.close();
  tl::RequestSpec spec = spec_of({1, 2}, 90);
  spec.timeout = std::chrono::milliseconds(400);  // time for 40 of its 90 tokens
  const RequestId running = service.loop.submit(spec);
  const RequestId waiting = service.loop.submit(spec);
  spec.timeout = tl::Clock::duration::max();
  spec.max_new_tokens = 3;
  const RequestId patient = service.loop.submit(spec);
  service.gate.open();
  CHECK(service.client.wait_for(running).reason == FinishReason::kTimedOut);
  CHECK(service.client.wait_for(waiting).reason == FinishReason::kTimedOut);
  CHECK(service.client.tokens[running].size() == 40 && service.client.tokens[waiting].empty());
  CHECK(service.client.wait_for(patient).reason == FinishReason::kLength);
  service.check_all_returned();
}

// Throws once, at the given step, on the device's thread.
template <typename Error>
auto fault(std::uint64_t step, Error error) {
  return [=](const tl::StepBatch& batch) {
    if (batch.step == step) throw error;
  };
}

void check_loop_lives(Service& service) {
  const RequestId id = service.submit({5, 5}, 6);
  CHECK(service.client.wait_for(id).reason == FinishReason::kLength);
  CHECK(service.client.tokens[id] == reference({5, 5}, 0, 6));
  service.check_all_returned();
}

TEST(a_failed_step_ends_all_running_requests_with_its_message) {
  for (const bool at_launch : {true, false}) {
    Service service(loop_config(), [&](FakeExecutor& executor) {
      (at_launch ? executor.on_launch : executor.on_wait) = [n = 0](const tl::StepBatch& batch) mutable {
        if (batch.rows.size() == 2 && ++n == 3) throw std::runtime_error("out of device memory");
      };
    });
    for (const RequestId id : service.submit_together({{1}, {2}}, 40)) {
      CHECK(service.client.wait_for(id).reason == FinishReason::kError);
      CHECK(service.client.ends.at(id).message == "out of device memory");
      const Tokens& tokens = service.client.tokens[id];
      const Tokens all = reference({static_cast<std::int32_t>(id)}, 0, 40);
      CHECK(std::equal(tokens.begin(), tokens.end(), all.begin()));
    }
    check_loop_lives(service);
  }
}

TEST(a_failed_step_that_names_a_slot_ends_that_request_only) {
  for (const bool at_launch : {true, false}) {
    Service service(loop_config(), [&](FakeExecutor& executor) {
      (at_launch ? executor.on_launch : executor.on_wait) = [n = 0](const tl::StepBatch& batch) mutable {
        if (batch.rows.size() == 3 && ++n == 3) throw tl::StepError("bad grammar", {batch.rows.front().slot});
      };
    });
    int num_failed = 0;
    for (const RequestId id : service.submit_together({{1}, {2}, {3}}, 40)) {
      num_failed += service.client.wait_for(id).reason == FinishReason::kError;
      if (service.client.ends.at(id).reason == FinishReason::kError) continue;
      CHECK(service.client.tokens[id] == reference({static_cast<std::int32_t>(id)}, 0, 40));
    }
    CHECK(num_failed == 1);
    check_loop_lives(service);
  }
}

TEST(two_failures_in_flight) {
  Service service(loop_config(), [](FakeExecutor& executor) {
    executor.on_launch = fault(3, tl::StepError("launch"));
    executor.on_wait = fault(2, 17);  // throws something other than a std::exception
  });
  const RequestId id = service.submit({1}, 40);
  CHECK(service.client.wait_for(id).message == "the executor threw an exception of unknown type");
  check_loop_lives(service);
}

TEST(a_result_of_the_wrong_size_is_a_failed_step) {
  struct Short : FakeExecutor {
    using FakeExecutor::FakeExecutor;
    void wait(tl::StepResult& result) override {
      FakeExecutor::wait(result);
      result.rows.pop_back();
    }
  };
  tl::EventLoop loop(loop_config(), std::make_unique<Short>(FakeShape{}));
  Client client(loop);
  CHECK(std::strstr(client.wait_for(loop.submit(spec_of({1}, 4))).message.c_str(), "0 rows for a step of 1"));
}

TEST(shutdown_in_every_state) {
  {
    Service idle;
  }
  for (const bool drain : {true, false}) {
    tl::DecoderLoopConfig config = loop_config(2);
    Service service(config);
    service.gate.close();
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) ids.push_back(service.submit({i}, 30));
    service.gate.wait_for_device();
    ids.push_back(service.submit({6}, 30));  // a request that is still in the mailbox
    service.loop.shut_down(drain ? tl::Shutdown::kDrain : tl::Shutdown::kCancel);
    service.gate.open();
    service.client.wait_until_closed();
    for (const RequestId id : ids) {
      CHECK(service.client.ends.at(id).reason == (drain ? FinishReason::kLength : FinishReason::kCancelled));
    }
    CHECK(service.loop.stats().scheduler.num_used_blocks == 0);
  }
  Service dropped;  // the service is destroyed with requests in every stage and nobody polling
  for (int i = 0; i < 20; ++i) dropped.submit({i}, 50);
}

TEST(stats_and_timings) {
  Service service;
  std::vector<RequestId> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(service.submit(Tokens(20, i), 10));
  for (const RequestId id : ids) {
    const tl::RequestTimings& t = service.client.wait_for(id).timings;
    CHECK(t.num_prompt_tokens == 20 && t.num_generated_tokens == 10);
    CHECK(0 <= t.queue_seconds && t.queue_seconds <= t.first_token_seconds && t.first_token_seconds <= t.total_seconds);
    CHECK(t.seconds_per_token > 0);
  }
  service.check_all_returned();
  const tl::LoopStats stats = service.loop.stats();
  CHECK(stats.num_ended[static_cast<int>(FinishReason::kLength)] == 10 && stats.num_timed == 10);
  CHECK(stats.num_generated_tokens == 100 && stats.num_steps >= 10 && stats.step_seconds > stats.host_seconds);
  double decode_host_seconds = 0;
  std::int64_t num_decode_steps = 0;
  stats.decode_host_times.for_each([&](double seconds, std::uint32_t count) {
    decode_host_seconds += seconds * count;
    num_decode_steps += count;
  });
  CHECK(1.04 * stats.host_seconds > decode_host_seconds && decode_host_seconds > 0);  // counted durations are within 3%
  CHECK(0 < num_decode_steps && num_decode_steps < stats.num_steps);
  CHECK(stats.scheduler.kv.lookup_tokens >= 200);
}

// The memory of blocks is lent while requests run, and requests that wait for blocks ask for it once.
TEST(memory_is_lent_while_requests_run) {
  tl::DecoderLoopConfig config = loop_config(4, 40);
  config.cache.slabs = {.block_bytes = 3, .slab_bytes = 8, .max_lent = 3};
  Service service(config);
  std::vector<tl::RequestId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(service.loop.submit(spec_of(Tokens(20, i), 40)));
  const std::vector<int> first = service.loop.lend_slabs(2), more = service.loop.lend_slabs(1);
  CHECK(first.size() == 2 && more.size() == 1 && std::ranges::find(first, more.front()) == first.end());
  CHECK_THROWS(std::logic_error, service.loop.lend_slabs(1), "expected at most 3 that are lent, found 4");
  CHECK(service.loop.lend_slabs(0).empty());
  service.loop.return_slabs(first);
  CHECK(service.loop.lend_slabs(2).size() == 2);
  for (const tl::RequestId id : ids) service.client.wait_for(id);
  CHECK(service.client.num_short > 0);
  CHECK(service.loop.stats().scheduler.num_lent_slabs == 3);
}

TEST(who_waits_for_memory_hears_of_the_end) {
  tl::DecoderLoopConfig config = loop_config(4, 40);
  config.cache.slabs = {.block_bytes = 3, .slab_bytes = 8, .max_lent = 3};
  config.scheduler.policy = tl::CapacityPolicy::kGuaranteedNoEvict;
  Service service(config);
  service.gate.close();  // the request keeps the blocks that it may need
  service.submit(Tokens(20, 1), 60);
  std::string message;
  std::thread waiting([&] {
    try {
      service.loop.lend_slabs(3);
    } catch (const tl::LimitError& error) {
      message = error.what();
    }
  });
  while (service.loop.stats().scheduler.num_running < 1) std::this_thread::yield();
  service.loop.shut_down(tl::Shutdown::kCancel);
  service.gate.open();
  waiting.join();
  CHECK(message.empty() || message.find("was shut down and lends no more memory") != std::string::npos);
  CHECK_THROWS(tl::LimitError, service.loop.lend_slabs(1), "was shut down and lends no more memory");
}

TEST(steps_are_recorded_from_the_start_until_they_are_taken) {
  tl::StepLog log;
  const auto add = [&](int rows) { log.add({.num_rows = rows}); };
  add(1);
  CHECK(log.take().steps.empty());
  log.start(2);
  for (int rows = 2; rows <= 5; ++rows) add(rows);
  const tl::RecordedSteps found = log.take();
  CHECK(found.steps.size() == 2 && found.steps[0].num_rows == 2 && found.steps[1].num_rows == 3);
  CHECK(found.num_left_out == 2);
  add(6);
  CHECK(log.take().steps.empty());
}

TEST(durations_are_counted_to_three_percent) {
  for (const double seconds : {0.0, 1e-9, 17e-9, 1e-6, 12.3456e-6, 0.004, 1.0, 17.0}) {
    tl::DurationCounts counts;
    counts.add(seconds);
    counts.add(seconds);
    int num_bins = 0;
    counts.for_each([&](double middle, std::uint32_t count) {
      CHECK(count == 2 && std::abs(middle - seconds) <= seconds / 32 + 1e-9);
      ++num_bins;
    });
    CHECK(num_bins == 1);
  }
}

}  // namespace
