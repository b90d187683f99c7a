// Checks the cache groups of a manifest, and holds the plan's caches against them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "engine/records.h"

namespace tl {

// What a layer keeps by the manifest, and the number of its cache group.
struct KeptCache {
  std::int64_t group = 0;
  const Cache* cache = nullptr;
};

// What all layers keep, by the names of the plan's tensors: the operand's name and the layer's number.
using KeptCaches = std::map<std::string, KeptCache, std::less<>>;

// What the layers of all groups of `cache` keep, which must live as long as the result. Throws EngineError if it has a
// cache twice.
KeptCaches kept_caches(const KvCache& cache);

// Throws EngineError unless groups have the kinds, windows, blocks and layers that a decoder's groups may have.
void check_cache_groups(const KvCache& cache, const RankMapping& mapping);

// Throws EngineError unless the plan has all caches of `kept`, and no two of a group overlap in a block (or, if they
// are states, in a run of blocks), which they fill to the manifest's end. A pipeline stage may leave room in its runs.
// Tensors have passed check_tensors.
void check_caches(const Plan& plan, const Manifest& manifest, const KeptCaches& kept);

// Throws EngineError unless the caches of a call are those of its cache group, and the group's tables cover its window,
// or keep one state of the longest sequence. The rest of the call has been checked.
void check_group_of(const CallInstruction& call, const Plan& plan, const Manifest& manifest, const KeptCaches& kept);

}  // namespace tl
