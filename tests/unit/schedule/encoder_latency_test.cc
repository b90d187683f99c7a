// In virtual time: how long short texts wait on a GPU beside long ones, if steps are paused and if they are not.
#include <algorithm>
#include <vector>

#include "simulated_encoder.h"

namespace {

constexpr tl::EncoderConfig kOfGpu{.max_batch_size = 64, .max_num_tokens = 16384, .max_input_len = 8192};
constexpr tl::StepBounds kOfShort{.max_rows = 64, .max_tokens = 512};

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

TEST(short_texts_do_not_wait_for_long_ones) {
  for (const int num_long : {1, 8, 16}) {
    std::vector<double> p99, long_tokens;
    for (const tl::StepBounds& beside : {tl::StepBounds{}, kOfShort}) {
      EncoderSimulation simulation(kOfGpu, {}, beside, {{1, 5, 40, 4}, {num_long, 2048, 8192, 0.2}});
      simulation.run(20'000);
      CHECK(simulation.latencies[0].size() > 200);
      p99.push_back(percentile(simulation.latencies[0], 0.99));
      double sum = 0;
      for (int i = 1; i <= num_long; ++i)
        sum += static_cast<double>(simulation.num_tokens[static_cast<std::size_t>(i)]);
      long_tokens.push_back(sum / simulation.now());
    }
    CHECK(p99[1] <= 0.3 * p99[0]);
    CHECK(long_tokens[1] >= 0.7 * long_tokens[0]);
  }
}

// The device waits for the host between steps no more than without pauses.
TEST(long_texts_alone_are_as_fast_as_without_pauses) {
  for (const double per_token : {0.1e-3, 1e-3}) {
    for (const int num_long : {1, 8, 64}) {
      std::vector<double> tokens;
      for (const tl::StepBounds& beside : {tl::StepBounds{}, kOfShort}) {
        EncoderSimulation simulation(kOfGpu, {.per_token = per_token}, beside, {{num_long, 2048, 8192, 0.2}});
        simulation.run(20'000);
        double sum = 0;
        for (const std::int64_t of_client : simulation.num_tokens) sum += static_cast<double>(of_client);
        tokens.push_back(sum / simulation.now());
      }
      CHECK(tokens[1] >= 0.98 * tokens[0]);
    }
  }
}

}  // namespace
