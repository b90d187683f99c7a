// Host cost of a decode step with a full batch, measured with an executor that takes no time:
//   bench_event_loop [num_running=256] [prompt=512] [steps=10000]
// The consumer polls every millisecond, as a busy server's would.
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "null_executor.h"
#include "schedule/decoder/loop_config.h"
#include "schedule/loop/event_loop.h"

namespace {

tl::DecoderLoopConfig config(int num_running, int prompt, int generated) {
  tl::DecoderLoopConfig config;
  config.scheduler = {.max_batch_size = num_running, .max_num_tokens = 8192, .max_seq_len = prompt + generated};
  config.cache.num_blocks = num_running * ((prompt + generated) / 32 + 1);
  config.vocab_size = 32000;
  config.max_input_len = prompt;
  return config;
}

tl::RequestSpec request(int seed, int prompt, int generated) {
  tl::RequestSpec spec;
  for (int i = 0; i < prompt; ++i) spec.prompt.push_back((seed * 7919 + i * 31) % 32000);
  spec.max_new_tokens = generated;
  spec.end_ids = {2};
  return spec;
}

}  // namespace

int main(int argc, char** argv) {
  const int num_running = argc > 1 ? std::atoi(argv[1]) : 256;
  const int prompt = argc > 2 ? std::atoi(argv[2]) : 512;
  const int num_steps = argc > 3 ? std::atoi(argv[3]) : 10000;
  const int generated = 512 * num_steps / num_running;  // no request ends while the clock runs
  tl::EventLoop loop(config(num_running, prompt, generated), std::make_unique<tl::NullExecutor>(num_running + 32));
  for (int i = 0; i < num_running; ++i) loop.submit(request(i, prompt, generated));

  tl::EventBatch events;
  const auto stats_after = [&](auto&& reached) {
    tl::LoopStats stats = loop.stats();
    for (; !reached(stats); stats = loop.stats()) {
      loop.poll(events, std::chrono::seconds(1));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return stats;
  };
  const tl::LoopStats before =
      stats_after([](const auto& s) { return s.num_generated_tokens > 0 && !s.scheduler.num_waiting; });
  const auto start = tl::Clock::now();
  const tl::LoopStats after = stats_after([&](const auto& s) { return s.num_steps >= before.num_steps + num_steps; });
  const double elapsed = std::chrono::duration<double>(tl::Clock::now() - start).count();
  const auto steps = after.num_steps - before.num_steps;
  std::printf("running %d, prompt %d: %.2f us of host time per step, over %lld steps\n", num_running, prompt,
              1e6 * elapsed / static_cast<double>(steps), static_cast<long long>(steps));
}
