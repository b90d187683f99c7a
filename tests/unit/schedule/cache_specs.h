// Cache groups for tests, and what fake devices keep in place of a recurrent state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "caches/cache_kind.h"

// Groups with these windows, 0 for none.
inline std::vector<tl::CacheSpec> with_windows(const std::vector<int>& windows) {
  std::vector<tl::CacheSpec> groups;
  for (const int window : windows) {
    groups.push_back({window > 0 ? tl::CacheKindName::kWindow : tl::CacheKindName::kFull, window, 1});
  }
  return groups;
}

// A group of states that take `blocks` blocks each.
inline tl::CacheSpec with_states(int blocks) { return {tl::CacheKindName::kState, 0, blocks}; }

inline bool is_state(const tl::CacheSpec& group) { return group.kind == tl::CacheKindName::kState; }

// The state after `tokens`: a number that depends on each of them and on their order.
inline std::int32_t state_after(std::span<const std::int32_t> tokens, std::int32_t before = 17) {
  auto state = static_cast<std::uint32_t>(before);
  for (const std::int32_t token : tokens) state = (state ^ static_cast<std::uint32_t>(token + 1)) * 2654435761u + 97;
  return static_cast<std::int32_t>(state);
}
