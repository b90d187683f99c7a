// What kernels know of the other ranks of an engine; the runtime writes it when it has loaded all.
#pragma once

namespace tl {

constexpr int kMaxRanks = 16;

// Addresses of the arenas and the states of all ranks of a stage. They have the same plan, so that what lies somewhere
// in one rank's memory lies at the same place in that of every other. The tokens that sequences sampled last lie at the
// same place in the states of all stages.
struct RankTable {
  unsigned long long rank, count;  // in the stage
  unsigned long long first;        // the number of the stage's first rank among all
  unsigned long long drawing;      // the state of the rank that draws tokens
  unsigned long long arenas[kMaxRanks], states[kMaxRanks];
  unsigned long long alarm;    // address of a RankAlarm in the host's memory
  unsigned long long timeout;  // nanoseconds that a rank waits for another before it raises the alarm
  unsigned long long is_over;  // not 0: a rank or the host has raised it, and nobody waits any more
};

// Zeros, until a rank has waited too long: for rank `missing` - 1, in the collective of number `site`.
struct alignas(8) RankAlarm {
  int missing, site;
};

}  // namespace tl
