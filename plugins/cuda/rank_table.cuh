// What kernels know of the other ranks of an engine; the runtime writes it when it has loaded all.
#pragma once

namespace tl {

constexpr int kMaxRanks = 16;

// Addresses of the arenas and the states of all ranks. Ranks have the same plan, so that what lies somewhere in one
// rank's memory lies at the same place in that of every other.
struct RankTable {
  unsigned long long rank, count;
  unsigned long long arenas[kMaxRanks], states[kMaxRanks];
};

}  // namespace tl
