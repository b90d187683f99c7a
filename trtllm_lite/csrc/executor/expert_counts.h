// The choices of an engine's routers since it was loaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace tl {

// The counts of one router, summed over steps.
struct ExpertCounts {
  std::vector<std::int64_t> choices;       // by expert: rows that have chosen it
  std::vector<std::int64_t> experts_read;  // by EP rank: the number of its experts that rows chose
  std::int64_t steps = 0;
  std::int64_t busiest_choices = 0;  // choices of experts on each step's busiest EP rank
};

// Reads a rank's counts of its own experts from a tensor of Plan::tallies (router/tally.cuh).
ExpertCounts read_tally(std::span<const std::int64_t> tally);

// Combines the counts of a stage's ranks for each router. `ranks` are in order; every `moe_tp_size` consecutive ranks
// have the same experts.
std::vector<ExpertCounts> counts_of_ranks(std::span<const std::vector<ExpertCounts>> ranks, std::int64_t moe_tp_size);

// The number of an engine's ranks that have the same experts.
std::int64_t moe_tp_size(const Engine& engine);

}  // namespace tl
