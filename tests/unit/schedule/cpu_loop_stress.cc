// Random submissions, cancellations and timeouts from several threads against the event loop over the CPU executor,
// with one stage and with several: every request ends exactly once, with the tokens it has alone, and every block comes
// back.
//   cpu_loop_stress ENGINE NUM_REQUESTS POISON
// POISON is a token whose embedding is NaN and which no request generates: a request with it in its prompt must end
// with an error, and all other requests without one.
#include <cstdlib>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "check.h"
#include "cpu/cpu_executor.h"
#include "errors.h"
#include "host/host_step_executor.h"
#include "schedule/decoder/loop_config.h"
#include "schedule/loop/event_loop.h"
#include "staged_executor.h"

namespace {

using tl::FinishReason;
using Tokens = std::vector<std::int32_t>;

constexpr int kThreads = 3;
constexpr int kTasks = 64;

struct Outcome {
  Tokens tokens;
  std::vector<tl::BeamHypothesis> hypotheses;
  std::optional<FinishReason> reason;
};

struct Task {
  tl::RequestSpec spec;
  Outcome alone;
};

bool ran_to_its_end(FinishReason reason) { return reason == FinishReason::kEndId || reason == FinishReason::kLength; }

// Makes requests that are greedy or sampled, with penalties, logprobs or beams. Many share a prefix; the prompts of
// some end with the token `poison`, whose logits make the request fail.
tl::RequestSpec random_spec(std::mt19937_64& random, int poison) {
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  auto params = std::make_shared<tl::RequestParams>();
  tl::SamplingParams& sampling = params->sampling;
  sampling.max_tokens = draw(4) ? 16 + draw(8) : 1 + draw(4);
  sampling.end_ids = {5};
  sampling.bad_words = {{poison}};
  const int kind = draw(8);
  if (kind < 3) sampling.temperature = 0;
  sampling.seed = random();
  if (kind == 4) sampling.repetition_penalty = 1.2f;
  if (kind == 5) sampling.logprobs = 3;
  tl::RequestSpec spec;
  if (kind >= 6) {
    params->beams = tl::BeamSearchParams{.num_beams = 1 + draw(3)};
    spec.num_beams = params->beams->num_beams;
  }
  spec.prompt.assign(static_cast<std::size_t>(draw(18)), draw(2));
  for (int i = 1 + draw(6); i > 0; --i) spec.prompt.push_back(draw(poison));
  if (draw(12) == 0) spec.prompt.back() = poison;
  spec.max_new_tokens = sampling.max_tokens;
  spec.end_ids = sampling.end_ids;
  spec.params = std::move(params);
  return spec;
}

tl::DecoderLoopConfig config_for(const tl::CpuExecutor& executor, int num_host_blocks) {
  const tl::Manifest& manifest = executor.engine().manifest();
  const int max_batch_size = static_cast<int>(manifest.limits.max_batch_size);
  tl::DecoderLoopConfig config;
  config.scheduler = {.policy = tl::CapacityPolicy::kMaxUtilization,
                      .max_batch_size = max_batch_size,
                      .max_num_tokens = static_cast<int>(manifest.limits.max_num_tokens),
                      .max_seq_len = static_cast<int>(manifest.limits.max_seq_len)};
  config.cache = {.num_blocks = static_cast<int>(executor.num_blocks()),
                  .num_host_blocks = num_host_blocks,
                  .tokens_per_block = static_cast<int>(manifest.kv_cache.tokens_per_block)};
  config.vocab_size = static_cast<int>(manifest.model.vocab_size);
  config.max_input_len = static_cast<int>(manifest.limits.max_input_len);
  config.max_requests = 200;
  return config;
}

// An event loop over an executor of one stage or several.
struct Service {
  Service(const tl::Engine& engine, int num_blocks, int num_host_blocks, int num_stages = 1)
      : executor(engine, 2, num_blocks, "portable"),
        staged(executor, num_stages),
        config(config_for(executor, num_host_blocks)),
        loop(config, std::make_unique<tl::HostStepExecutor>(
                         num_stages == 1 ? static_cast<tl::LogitsExecutor&>(executor) : staged, num_host_blocks)) {}

  // Waits for events; returns false when the loop is closed.
  bool hear() {
    const tl::PollStatus status = loop.poll(events, std::chrono::seconds(60));
    CHECK(status != tl::PollStatus::kTimeout);
    for (tl::TokenEvent& event : events.tokens) {
      Outcome& outcome = outcomes[event.id];
      CHECK(!outcome.reason);
      if (!event.tokens.empty()) {
        CHECK(event.index == std::ssize(outcome.tokens));
        outcome.tokens.insert(outcome.tokens.end(), event.tokens.begin(), event.tokens.end());
      } else {
        CHECK(outcome.hypotheses.empty());
        outcome.hypotheses = std::move(static_cast<tl::RequestOutputs&>(*event.outputs).hypotheses);
      }
    }
    for (const tl::RequestEnd& end : events.ends) {
      CHECK(!std::exchange(outcomes[end.id].reason, end.reason));
      ++num_ended;
    }
    return status != tl::PollStatus::kClosed;
  }

  tl::CpuExecutor executor;
  StagedExecutor staged;
  tl::DecoderLoopConfig config;
  tl::EventLoop loop;
  tl::EventBatch events;
  std::unordered_map<tl::RequestId, Outcome> outcomes;
  int num_ended = 0;
};

std::vector<Task> make_tasks(const tl::Engine& engine, int poison) {
  Service service(engine, 0, 0);
  std::mt19937_64 random(1);
  std::vector<Task> tasks;
  for (int i = 0; i < kTasks; ++i) {
    tasks.push_back({random_spec(random, poison), {}});
    const tl::RequestId id = service.loop.submit(tasks.back().spec);
    while (!service.outcomes[id].reason) service.hear();
    tasks.back().alone = service.outcomes[id];
    const bool poisoned = tasks.back().spec.prompt.back() == poison;
    CHECK(poisoned ? tasks.back().alone.reason == FinishReason::kError : ran_to_its_end(*tasks.back().alone.reason));
  }
  return tasks;
}

struct Submitted {
  std::mutex mutex;
  std::unordered_map<tl::RequestId, const Task*> tasks;
};

void submit_randomly(tl::EventLoop& loop, const std::vector<Task>& tasks, Submitted& submitted, std::uint64_t seed,
                     int num_requests) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int n) { return static_cast<int>(random() % static_cast<std::uint64_t>(n)); };
  std::vector<tl::RequestId> mine;
  while (std::ssize(mine) < num_requests) {
    const Task& task = tasks[static_cast<std::size_t>(draw(kTasks))];
    tl::RequestSpec spec = task.spec;
    spec.priority = draw(3) - 1;
    if (draw(4) == 0) spec.cache_salt = "tenant";
    if (draw(8) == 0) spec.timeout = std::chrono::microseconds(1 + draw(20000));
    try {
      mine.push_back(loop.submit(std::move(spec)));
      const std::lock_guard lock(submitted.mutex);
      submitted.tasks[mine.back()] = &task;
    } catch (const tl::OverloadedError&) {
      std::this_thread::yield();  // the queue is full: the consumer lags
    }
    if (draw(8) == 0 && !mine.empty()) loop.cancel(mine[mine.size() - 1 - draw(std::min<int>(mine.size(), 20))]);
    if (draw(50) == 0) (void)loop.stats();
  }
}

void check(const Outcome& outcome, const Task& task) {
  const Tokens& all = task.alone.tokens;
  CHECK(outcome.reason && outcome.tokens.size() <= all.size());
  CHECK(std::equal(outcome.tokens.begin(), outcome.tokens.end(), all.begin()));
  if (*outcome.reason == FinishReason::kCancelled || *outcome.reason == FinishReason::kTimedOut) return;
  CHECK(outcome.reason == task.alone.reason && outcome.tokens.size() == all.size());
  CHECK(outcome.hypotheses.size() == task.alone.hypotheses.size());
  for (std::size_t i = 0; i < outcome.hypotheses.size(); ++i) {
    CHECK(outcome.hypotheses[i].tokens == task.alone.hypotheses[i].tokens);
    CHECK(outcome.hypotheses[i].score == task.alone.hypotheses[i].score);  // equal to the last bit
  }
}

void check_coverage(const tl::LoopStats& stats, int num_requests, int num_host_blocks) {
  const tl::SchedulerStats& s = stats.scheduler;
  CHECK(s.num_running == 0 && s.num_waiting == 0 && s.num_used_blocks == 0);
  CHECK(s.num_free_host_blocks == num_host_blocks && stats.num_failed_steps == 0);
  // The run reaches the cases that it is meant to test.
  for (const auto reason : {FinishReason::kEndId, FinishReason::kLength, FinishReason::kCancelled,
                            FinishReason::kTimedOut, FinishReason::kError}) {
    CHECK(stats.num_ended[static_cast<std::size_t>(reason)] >= num_requests / 100);
  }
  const std::int64_t num_preemptions = num_host_blocks > 0 ? s.num_swap_preemptions : s.num_recompute_preemptions;
  std::printf("%d requests, %lld steps, %lld preemptions\n", num_requests, static_cast<long long>(stats.num_steps),
              static_cast<long long>(num_preemptions));
  CHECK(num_preemptions >= num_requests / 500);
}

void stress(const tl::Engine& engine, const std::vector<Task>& tasks, int num_requests, int num_host_blocks,
            int num_stages) {
  constexpr int kBlocks = 10;  // less than half of the demand
  Service service(engine, kBlocks, num_host_blocks, num_stages);
  Submitted submitted;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    const int count = num_requests / kThreads + (i < num_requests % kThreads);
    threads.emplace_back([&, i, count] { submit_randomly(service.loop, tasks, submitted, i + 1, count); });
  }
  while (service.num_ended < num_requests) service.hear();
  for (std::thread& thread : threads) thread.join();
  service.loop.shut_down(tl::Shutdown::kDrain);
  while (service.hear()) {
  }
  CHECK(std::ssize(service.outcomes) == num_requests && std::ssize(submitted.tasks) == num_requests);
  for (const auto& [id, outcome] : service.outcomes) check(outcome, *submitted.tasks.at(id));
  check_coverage(service.loop.stats(), num_requests, num_host_blocks);
  if (num_stages > 1) CHECK(service.staged.most_begun == num_stages);
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(argc == 4);
  const tl::Engine engine(argv[1]);
  const int num_requests = std::atoi(argv[2]);
  const std::vector<Task> tasks = make_tasks(engine, std::atoi(argv[3]));
  stress(engine, tasks, num_requests / 3, 4, 1);                     // preempted requests are swapped
  stress(engine, tasks, num_requests / 3, 0, 1);                     // preempted requests are recomputed
  stress(engine, tasks, num_requests - num_requests / 3 * 2, 4, 3);  // steps pass through three stages
}
