// What kernels know about the other ranks of an engine. The runtime writes it after loading all ranks.
#pragma once

namespace tl {

constexpr int kMaxRanks = 16;

// Addresses of the arenas and states of all ranks of a stage. The ranks share one plan, so a tensor has the same offset
// on every rank. The last sampled tokens have the same offset in the states of all stages.
struct RankTable {
  unsigned long long rank, count;  // index of this rank in the stage, and number of ranks
  unsigned long long first;        // number of the stage's first rank among all ranks
  unsigned long long drawing;      // address of the state of the rank that draws tokens
  unsigned long long arenas[kMaxRanks], states[kMaxRanks];
  unsigned long long alarm;    // address of a RankAlarm in host memory
  unsigned long long timeout;  // nanoseconds that a rank waits for another before it raises the alarm
  unsigned long long is_over;  // not 0 if a rank or the host has raised the alarm: all waits end
};

// Zeros until a rank has waited too long: for rank `missing` - 1, in collective `site`.
struct alignas(8) RankAlarm {
  int missing, site;
};

}  // namespace tl
