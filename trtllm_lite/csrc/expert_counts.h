// What the routers of an engine's mixtures of experts have chosen since it was loaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace tl {

// Of one router; sums over steps.
struct ExpertCounts {
  std::vector<std::int64_t> choices;       // of each expert: rows that have chosen it
  std::vector<std::int64_t> experts_read;  // by ranks that have the same experts: those that some row has chosen
  std::int64_t steps = 0;
  std::int64_t busiest_choices = 0;  // of those ranks, of which each step has another, on which most choices fell
};

// What a rank has counted of its own experts, as it lies in a tensor of Plan::tallies (router/tally.cuh).
ExpertCounts read_tally(std::span<const std::int64_t> tally);

// The routers of a stage, by what each of its ranks has counted of them: ranks in order, of which every `moe_tp_size`
// have the same experts.
std::vector<ExpertCounts> counts_of_ranks(std::span<const std::vector<ExpertCounts>> ranks, std::int64_t moe_tp_size);

// The ranks of an engine that have the same experts.
std::int64_t moe_tp_size(const Engine& engine);

}  // namespace tl
