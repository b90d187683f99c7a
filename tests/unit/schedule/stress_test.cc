// Many random submissions, cancellations and timeouts from several threads, with device faults: every request
// ends exactly once, every token is right, every block comes back.
#include <atomic>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "check.h"
#include "client.h"
#include "errors.h"

namespace {

constexpr int kThreads = 3;

struct Submitted {
  std::mutex mutex;
  std::unordered_map<tl::RequestId, Heard> requests;
};

void submit_randomly(tl::EventLoop& loop, Submitted& submitted, std::uint64_t seed, int num_requests) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  std::vector<tl::RequestId> mine;
  while (std::ssize(mine) < num_requests) {
    Heard request;
    Tokens prompt(draw(12), draw(3));  // several prompts begin alike
    for (const std::int32_t token : random_tokens(random, 1 + draw(20))) prompt.push_back(token);
    const int num_tokens = 1 + draw(30);
    const int num_beams = draw(10) ? 0 : 1 + draw(3);
    request.spec = num_beams > 0 ? search_of(std::move(prompt), num_tokens, num_beams, draw(100))
                                 : spec_of(std::move(prompt), num_tokens, draw(100));
    if (num_beams == 0 && draw(3) == 0) request.spec = guided(std::move(request.spec));
    request.spec.priority = draw(3) - 1;
    if (draw(8) == 0) request.spec.timeout = std::chrono::microseconds(1 + draw(5000));
    try {
      // The lock keeps the consumer from receiving events of a request before the request is listed.
      const std::lock_guard lock(submitted.mutex);
      mine.push_back(loop.submit(request.spec));
      submitted.requests[mine.back()] = std::move(request);
    } catch (const tl::OverloadedError&) {
      std::this_thread::yield();       // the queue is full: the consumer lags
    } catch (const tl::LimitError&) {  // the cache cannot hold that many beams
    }
    if (draw(5) == 0 && !mine.empty()) loop.cancel(mine[mine.size() - 1 - draw(std::min<int>(mine.size(), 20))]);
    if (draw(50) == 0) (void)loop.stats();
  }
}

void inject_faults(FakeExecutor& executor) {
  auto random = std::make_shared<std::mt19937_64>(1);
  executor.row_error = [random](const tl::StepRow&) { return (*random)() % 4000 ? std::string() : std::string("NaN"); };
  const auto fault = [random](const tl::StepBatch& batch) {
    if ((*random)() % 500 == 0) throw tl::StepError("fault", {batch.rows.empty() ? 0 : batch.rows.front().slot});
    if ((*random)() % 2000 == 0) throw std::runtime_error("lost device");
  };
  executor.on_launch = fault;
  executor.on_wait = fault;
  executor.is_late = [random](const tl::StepRow&) { return (*random)() % 4 == 0; };
}

void run_random_requests(int num_requests, int num_stages) {
  tl::DecoderLoopConfig config = loop_config(8, 26);
  config.cache.num_host_blocks = 6;  // some preempted requests are swapped, others do not fit
  config.max_requests = 200;
  auto [executor, borrowed] = executor_for(config, num_stages);
  borrowed->seconds_per_token = 1e-3;
  borrowed->late_with_results = num_stages > 1;
  inject_faults(*borrowed);
  tl::EventLoop loop(config, std::move(executor));
  Client client(loop);
  Submitted submitted;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    const int count = num_requests / kThreads + (i < num_requests % kThreads);
    threads.emplace_back([&, i, count] { submit_randomly(loop, submitted, static_cast<std::uint64_t>(i), count); });
  }
  while (std::ssize(client.ends) < num_requests) client.poll();
  for (std::thread& thread : threads) thread.join();
  loop.shut_down(tl::Shutdown::kDrain);
  client.wait_until_closed();

  CHECK(std::ssize(client.ends) == num_requests && std::ssize(submitted.requests) == num_requests);
  int num_found = 0;
  for (auto& [id, request] : submitted.requests) {
    request.tokens = client.tokens[id];
    request.found = client.found[id];
    num_found += request.found.size() > 1;
    request.end = client.ends.at(id);
    request.check();
  }
  const tl::LoopStats stats = loop.stats();
  const tl::SchedulerStats& s = stats.scheduler;
  CHECK(s.num_running == 0 && s.num_waiting == 0 && s.num_used_blocks == 0);
  CHECK(s.num_free_host_blocks == config.cache.num_host_blocks);
  for (const auto reason : {tl::FinishReason::kLength, tl::FinishReason::kCancelled, tl::FinishReason::kTimedOut,
                            tl::FinishReason::kError}) {
    CHECK(reaches(stats.num_ended[static_cast<std::size_t>(reason)],
                  20));  // the cases do occur
  }
  CHECK(reaches(num_found, 100));
  CHECK(reaches(stats.scheduler.num_late_rows, 100));
  CHECK(reaches(s.num_recompute_preemptions, 20) && reaches(s.num_swap_preemptions, 20) &&
        reaches(stats.num_failed_steps, 5));
}

TEST(random_requests_to_one_stage) { run_random_requests(static_cast<int>(rounds(10000)), 1); }
TEST(random_requests_to_stages) { run_random_requests(static_cast<int>(rounds(10000)), 3); }

}  // namespace
