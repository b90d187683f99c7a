#include <cstring>

#include "state.h"

namespace emulated {
namespace {

constexpr u32 kOfCluster = kNamedBarriers;  // the index of the cluster's barrier in a thread's rounds

bool has_arrived(const NamedBarrier& barrier, u32 id) { return me().rounds[id] == barrier.round; }

// Returns whether this arrival completes the barrier.
bool arrive_at(NamedBarrier& barrier, u32 id, u32 threads) {
  if (barrier.arrived > 0 && barrier.threads != threads) {
    fail("arrived at a barrier for %u threads, but others arrived for %u", threads, barrier.threads);
  }
  if (has_arrived(barrier, id)) fail("arrived at a barrier again before all other threads have arrived");
  barrier.threads = threads;
  me().rounds[id] = barrier.round;
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0;
  ++barrier.round;
  wake(barrier.waiting);
  return true;
}

NamedBarrier& named_barrier(u32 id, u32 threads) {
  if (id >= kNamedBarriers) fail("barrier %u, expected a number below %d", id, kNamedBarriers);
  if (threads == 0 || threads % kLanes != 0) fail("barrier %u for %u threads, expected whole warps", id, threads);
  return my_block().barriers[id];
}

}  // namespace

void barrier_sync(u32 id, u32 threads) {
  NamedBarrier& barrier = named_barrier(id, threads);
  if (arrive_at(barrier, id, threads)) return;
  barrier.waiting.push_back(&me());
  wait("barrier", id);
}

void barrier_arrive(u32 id, u32 threads) {
  arrive_at(named_barrier(id, threads), id, threads);
  pause();
}

void cluster_arrive() {
  const Launch& launch = *my_block().launch;
  arrive_at(my_block().cluster->barrier, kOfCluster, launch.cluster * launch.block.x);
}

void cluster_wait() {
  NamedBarrier& barrier = my_block().cluster->barrier;
  if (!has_arrived(barrier, kOfCluster)) return;
  barrier.waiting.push_back(&me());
  wait("the cluster's barrier");
}

MBarrier& mbarrier_at(Block& from, u32 address, const char* what) {
  const char* at = checked(from, address, 8, what);
  Block& block = block_of(from, address);
  const auto found = block.mbarriers.find(address & ((1u << kRankShift) - 1));
  if (found == block.mbarriers.end()) fail("%s: there is no mbarrier at 0x%x", what, address);
  u64 mark;
  std::memcpy(&mark, at, 8);
  if (mark != kBarrierMark) fail("%s: the mbarrier at 0x%x was overwritten", what, address);
  return found->second;
}

void end_phase_if_complete(MBarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
  wake(barrier.waiting);
}

void mbarrier_init(u32 address, u32 arrivals) {
  char* at = shared(address, 8, "mbarrier.init");
  if (address % 8 != 0 || arrivals == 0) {
    fail("mbarrier.init at 0x%x for %u arrivals, expected a multiple of 8 and at least 1", address, arrivals);
  }
  std::memcpy(at, &kBarrierMark, 8);
  MBarrier& barrier = my_block().mbarriers[address];
  if (!barrier.waiting.empty()) fail("mbarrier.init at 0x%x, while threads wait for that mbarrier", address);
  barrier.arrivals = barrier.missing = arrivals;
  barrier.phase = 0;
  barrier.bytes = 0;
}

void mbarrier_arrive(u32 address, u32 expected_bytes) {
  MBarrier& barrier = mbarrier_at(my_block(), address, "mbarrier.arrive");
  if (barrier.missing == 0)
    fail("one arrival more than the %u that the mbarrier at 0x%x expects", barrier.arrivals, address);
  barrier.bytes += expected_bytes;
  --barrier.missing;
  end_phase_if_complete(barrier);
  pause();
}

bool mbarrier_wait(u32 address, u32 parity) {
  if (parity > 1) fail("mbarrier wait for parity %u, expected 0 or 1", parity);
  MBarrier& barrier = mbarrier_at(my_block(), address, "mbarrier wait");
  if (barrier.phase % 2 != parity) return true;
  barrier.waiting.push_back(&me());
  wait("mbarrier", address);
  return true;
}

}  // namespace emulated
