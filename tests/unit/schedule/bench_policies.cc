// Simulates both capacity policies on requests that all arrive at once, on a modelled H200 with a Llama-3.1-8B shape.
// From the repository root:
//   python trtllm_lite/csrc/generate_records.py generated
//   g++ -std=c++20 -O2 -I trtllm_lite/csrc -I generated -I tests/unit/schedule -o bench_policies
//     tests/unit/schedule/bench_policies.cc $(find trtllm_lite/csrc/{caches,schedule} -name '*.cc' | grep -vE
//     'features|size')
//   bench_policies NUM_REQUESTS INPUT_LEN OUTPUT_LEN NUM_BLOCKS NUM_HOST_BLOCKS MAX_BATCH_SIZE MAX_NUM_TOKENS
// Lengths in tokens: N or LEAST:MOST. Blocks hold 32 tokens.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "random_load.h"
#include "simulated_device.h"

namespace {

struct Lengths {
  explicit Lengths(const char* text)
      : least(std::atoi(text)), most(std::strchr(text, ':') ? std::atoi(std::strchr(text, ':') + 1) : least) {}
  int draw(std::mt19937_64& random) const {
    return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
  }
  int least, most;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr, "expected 7 arguments, found %d: see the head of bench_policies.cc\n", argc - 1);
    return 2;
  }
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  const Lengths input(argv[2]), output(argv[3]);
  std::mt19937_64 random(0);
  std::vector<SimulatedRequest> requests;
  double num_tokens = 0;
  for (int i = 0; i < number(1); ++i) {
    const int num_prompt = input.draw(random), num_generated = output.draw(random);
    requests.push_back({num_prompt, num_generated, num_generated});
    num_tokens += num_generated;
  }
  for (const auto policy : {tl::CapacityPolicy::kGuaranteedNoEvict, tl::CapacityPolicy::kMaxUtilization}) {
    Simulation run(scheduler_config(policy, number(6), number(7), input.most + output.most),
                   {.num_blocks = number(4), .num_host_blocks = number(5), .enable_block_reuse = false}, requests);
    run.run();
    const tl::SchedulerStats stats = run.stats();
    std::printf("%-19s %8.2f s %7.0f tok/s %6d steps, memory %.3f full, preemptions: %lld swap, %lld recompute\n",
                policy == tl::CapacityPolicy::kMaxUtilization ? "MAX_UTILIZATION" : "GUARANTEED_NO_EVICT",
                run.seconds(), num_tokens / run.seconds(), run.num_steps, run.memory_use(),
                static_cast<long long>(stats.num_swap_preemptions),
                static_cast<long long>(stats.num_recompute_preemptions));
  }
}
