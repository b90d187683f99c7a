#include "executor/expert_counts.h"

#include "router/tally.cuh"

namespace tl {

ExpertCounts read_tally(std::span<const std::int64_t> tally) {
  const std::span<const std::int64_t> choices = tally.first(tally.size() - kTallyPlaces);
  const std::span<const std::int64_t> sums = tally.last(kTallyPlaces);
  return {.choices = {choices.begin(), choices.end()},
          .experts_read = {sums[kExpertsRead]},
          .steps = sums[kSteps],
          .busiest_choices = sums[kBusiestChoices]};
}

std::vector<ExpertCounts> counts_of_ranks(std::span<const std::vector<ExpertCounts>> ranks, std::int64_t moe_tp_size) {
  std::vector<ExpertCounts> all = ranks.front();
  for (std::size_t rank = static_cast<std::size_t>(moe_tp_size); rank < ranks.size();
       rank += static_cast<std::size_t>(moe_tp_size)) {
    for (std::size_t router = 0; router < all.size(); ++router) {
      const ExpertCounts& own = ranks[rank][router];
      all[router].choices.insert(all[router].choices.end(), own.choices.begin(), own.choices.end());
      all[router].experts_read.push_back(own.experts_read.front());
    }
  }
  return all;
}

std::int64_t moe_tp_size(const Engine& engine) {
  const RankMapping& mapping = engine.manifest().mapping;
  return mapping.tp_size / mapping.moe_ep_size;
}

}  // namespace tl
