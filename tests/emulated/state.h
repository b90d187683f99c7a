// State shared by the parts of the machine: threads, warps, blocks.
#pragma once

#include <setjmp.h>

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "machine.h"

namespace emulated {

constexpr u32 kSharedBase = 1024;  // address at which a block's shared memory begins
constexpr u32 kRankShift = 24;     // the bits above hold the rank + 1 of another block of the cluster
constexpr u32 kGuardBytes = 4096;  // after the dynamic shared memory; the kernel's own variables follow
constexpr u32 kStaticBytes = 48 * 1024;
constexpr int kPoison = 0xff;  // a byte that makes NaN in every type
constexpr u64 kBarrierMark = 0x6d62617272696572;
// Stacks begin in different sets of the processor's caches: with a power of two their tops would evict each other.
constexpr std::size_t kStackBytes = 129 * 1024 + 64;
constexpr int kNamedBarriers = 16;

struct Block;
struct Warp;

struct ThreadCopy {
  u32 target, bytes, group;
  const void* source;
};

struct Fiber : Place {
  enum Status { kReady, kWaiting, kDone } status = kReady;
  jmp_buf state;
  bool started = false;
  Warp* warp;
  int lane;
  const char* waits_at;  // name of an instruction, or kind and number of a barrier
  u32 number;
  std::vector<ThreadCopy> copies;
  u32 copy_group = 0;
  std::array<u32, kNamedBarriers + 1> rounds{};  // the last round at each barrier of the block and the cluster
};

struct Work {
  std::function<void()> run;
  u32 group;
};

struct Warp {
  Block* block;
  int index;
  double pace;  // the probability that the warp runs at its turn
  std::vector<Fiber> lanes;
  bool queued = false;
  const char* meeting = nullptr;
  int met = 0;
  void* operands[kLanes];
  std::vector<Work> work;
  u32 work_group = 0;
};

struct NamedBarrier {
  u32 threads = 0;
  u32 arrived = 0, round = 1;  // each round ends when all threads have arrived
  std::vector<Fiber*> waiting;
};

struct MBarrier {
  u32 arrivals = 0, missing = 0, phase = 0;
  long long bytes = 0;  // bytes expected that have not landed yet
  std::vector<Fiber*> waiting;
};

struct BulkCopy {
  Block* block;
  u32 target, bytes, barrier;
  const void* source;  // null: the source is a box of `matrix`, or `sent`
  std::array<char, 16> sent;
  const Matrix* matrix = nullptr;
  int row = 0, column = 0;
};

struct Cluster {
  std::vector<Block*> blocks;
  NamedBarrier barrier;
};

// The launches of one GPU.
struct Stream {
  std::vector<const Launch*> launches;
  std::size_t current = 0;  // index of the current launch
  u64 started = 0;          // blocks of the current launch that have started
  u32 running = 0;          // blocks of the current launch that have not ended
  double pace = 1.0;        // pace of the current launch
};

struct Block {
  const Launch* launch;
  Stream* stream;
  Index index;
  u32 rank;
  std::shared_ptr<Cluster> cluster;
  std::unique_ptr<char[]> storage;
  char* memory;  // aligned address within `storage`
  std::vector<Warp> warps;
  NamedBarrier barriers[kNamedBarriers];
  std::map<u32, MBarrier> mbarriers;
  int running = 0;
};

struct Failure {};  // thrown for a failure of the scheduler itself; its message is machine->error

struct Machine {
  std::vector<Stream> streams;
  std::mt19937_64 random;
  u64 turns = 0;
  double eagerness;    // probability that an asynchronous operation completes at a step
  bool looks = false;  // whether a thread polls, so that copies may not wait until no thread is ready
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<Warp*> ready;
  std::vector<BulkCopy> copies;
  std::map<const void*, u32> statics;  // addresses of the kernels' own shared variables, one after the other
  u32 statics_end = 0;
  char* stacks;
  std::vector<char*> free_stacks;
  std::map<Fiber*, char*> stack_of;
  std::string error;
  bool in_fiber = false;
  jmp_buf scheduler;

  bool chance(double probability) { return std::uniform_real_distribution<>()(random) < probability; }
  std::size_t pick(std::size_t count) { return random() % count; }
};

extern Machine* machine;  // the machine of the launch that is under way

inline Fiber& me() { return *static_cast<Fiber*>(here); }
inline Block& my_block() { return *me().warp->block; }

// messages.cc
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string deadlock();  // describes which threads wait for what

// launches.cc
void end_block(Block& block);

// scheduler.cc. Lets one warp run: each of its lanes continues until it has to wait, and until another thread wakes it.
void step();
void queue(Warp& warp);
void wait(const char* at, u32 number = 0);
void wake(Fiber& fiber);
void wake(std::vector<Fiber*>& fibers);

// memory.cc. Returns the block that an address of shared memory refers to, seen from `from`, and makes the address one
// of that block.
Block& block_of(Block& from, u32& address);
char* checked(Block& from, u32 address, u32 bytes, const char* what);

// barriers.cc
MBarrier& mbarrier_at(Block& from, u32 address, const char* what);
void end_phase_if_complete(MBarrier& barrier);

// copies.cc
void land_any();                         // completes one of the bulk copies under way
void issue(std::function<void()> work);  // asynchronous work of a warp's tensor cores, done in order and in groups
void finish_work(Warp& warp, u32 end);   // completes the groups before `end`

}  // namespace emulated
