// The place of a rank in a pipeline: ranks are numbered stage by stage.
#pragma once

#include <cstdint>

#include "engine/records.h"

namespace tl {

constexpr std::int64_t num_ranks(const RankMapping& mapping) { return mapping.tp_size * mapping.pp_size; }
constexpr std::int64_t stage_of(const RankMapping& mapping) { return mapping.rank / mapping.tp_size; }
// The index of a rank within its stage.
constexpr std::int64_t part_of(const RankMapping& mapping) { return mapping.rank % mapping.tp_size; }
constexpr bool is_first_stage(const RankMapping& mapping) { return stage_of(mapping) == 0; }
constexpr bool is_last_stage(const RankMapping& mapping) { return stage_of(mapping) == mapping.pp_size - 1; }

}  // namespace tl
