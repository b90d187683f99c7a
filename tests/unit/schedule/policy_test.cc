// The capacity policies when memory is scarce, on a device with modelled step times.
#include <algorithm>
#include <random>

#include "random_load.h"
#include "simulated_device.h"

namespace {

using tl::CapacityPolicy;

constexpr int kTokensPerBlock = 32;

tl::KvManagerConfig cache_of(int num_blocks, int num_host_blocks) {
  return {.num_blocks = num_blocks,
          .num_host_blocks = num_host_blocks,
          .tokens_per_block = kTokensPerBlock,
          .enable_block_reuse = false};
}

// Returns the number of blocks that one request grows to.
int demand(const SimulatedRequest& request) {
  return (request.num_prompt + request.num_generated - 2) / kTokensPerBlock + 1;
}

// Requests of equal length that start together need the most memory at their ends. Requests that do not fit are
// preempted, none of them twice, and continue when others have ended, instead of starting again from their first token.
TEST(a_burst_that_does_not_fit_at_its_end_preempts_the_fewest) {
  const SimulatedRequest request{.num_prompt = 128, .max_new_tokens = 1024, .num_generated = 1024};
  constexpr int kRequests = 64, kFitting = 55;
  const std::vector<SimulatedRequest> requests(kRequests, request);
  for (const bool may_swap : {false, true}) {
    const auto cache = cache_of(kFitting * demand(request) + 20, may_swap ? 600 : 0);
    Simulation all(scheduler_config(CapacityPolicy::kMaxUtilization, kRequests, 2048, 1152), cache, requests);
    all.run();
    CHECK(all.num_preemptions() <= kRequests - kFitting && all.most_preemptions == 1);
    CHECK((all.stats().num_swap_preemptions > 0) == may_swap);
    Simulation waves(scheduler_config(CapacityPolicy::kGuaranteedNoEvict, kRequests, 2048, 1152), cache, requests);
    waves.run();
    CHECK(waves.num_steps > 2000 && all.num_steps < 1300);
    CHECK(all.seconds() < (may_swap ? 0.8 : 0.85) * waves.seconds());
  }
}

// With random lengths, some shorter than requested: memory is full while any request waits, at the cost of few
// preemptions, and no request overtakes an earlier one.
TEST(max_utilization_uses_the_memory) {
  for (std::uint64_t seed = 0; seed < rounds(12); ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](int least, int most) {
      return least + static_cast<int>(random() % static_cast<std::uint64_t>(most - least + 1));
    };
    const int longest = draw(200, 640);
    std::vector<SimulatedRequest> requests;
    for (int i = 0; i < 300; ++i) {
      const int asked = draw(longest / 2, longest);
      requests.push_back({draw(16, longest), asked, draw(0, 2) ? asked : draw(1, asked)});
    }
    const auto cache = cache_of(40 * longest / kTokensPerBlock, seed % 2 ? 200 : 0);
    const auto config = scheduler_config(CapacityPolicy::kMaxUtilization, 128, 1024, 2 * longest);
    Simulation full(config, cache, requests);
    full.run();
    CHECK(full.memory_use() > 0.9);
    CHECK(full.num_preemptions() * 5 < std::ssize(requests) && full.most_preemptions <= 3);
    CHECK(full.stats().num_recomputed_tokens * 20 < full.stats().num_scheduled_tokens);  // under 5 %
    CHECK(std::ranges::is_sorted(full.first_tokens));
    auto guaranteed = config;
    guaranteed.policy = CapacityPolicy::kGuaranteedNoEvict;
    Simulation certain(guaranteed, cache, requests);
    certain.run();
    CHECK(full.seconds() < 0.85 * certain.seconds());
  }
}

}  // namespace
