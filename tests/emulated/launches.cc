#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "state.h"

namespace emulated {

void end_block(Block& block) {
  for (const BulkCopy& copy : machine->copies) {
    if (copy.block == &block) fail("the block ends before a bulk copy of %u bytes has landed", copy.bytes);
  }
  for (int id = 0; id < kNamedBarriers; ++id) {
    const NamedBarrier& barrier = block.barriers[id];
    if (barrier.arrived == 0) continue;
    fail("the block ends when %u of %u threads have arrived at barrier %d", barrier.arrived, barrier.threads, id);
  }
  const u32 size = block.launch->shared_bytes;
  for (u32 i = 0; i < kGuardBytes; ++i) {
    if (static_cast<unsigned char>(block.memory[size + i]) == kPoison) continue;
    fail("shared memory was written %u bytes past its end", i);
  }
  for (Warp& warp : block.warps) {
    for (Fiber& fiber : warp.lanes) {
      machine->free_stacks.push_back(machine->stack_of[&fiber]);
      machine->stack_of.erase(&fiber);
    }
  }
  std::erase_if(machine->ready, [&](const Warp* warp) { return warp->block == &block; });
  block.warps.clear();
  block.storage.reset();
  --block.stream->running;
}

namespace {

constexpr std::array kLaunchPaces = {1.0, 0.5, 0.1}, kWarpPaces = {1.0, 1.0, 0.2};

// When launches run side by side, each launch and each of its warps has a pace of its own, so that some get far ahead.
double pace_beside(double pace, const std::array<double, 3>& factors) {
  return machine->streams.size() == 1 ? pace : pace * factors[machine->pick(factors.size())];
}

void start_block(Stream& stream, Index index, u32 rank, std::shared_ptr<Cluster> cluster) {
  const Launch& launch = *stream.launches[stream.current];
  auto block = std::make_unique<Block>();
  block->launch = &launch;
  block->stream = &stream;
  block->index = index;
  block->rank = rank;
  block->cluster = cluster;
  cluster->blocks.push_back(block.get());
  block->storage = std::make_unique<char[]>(launch.shared_bytes + kGuardBytes + kStaticBytes + 1024);
  const auto address = reinterpret_cast<std::uintptr_t>(block->storage.get());
  block->memory = block->storage.get() + (1024 - address % 1024) % 1024;
  std::memset(block->memory, kPoison, launch.shared_bytes + kGuardBytes + kStaticBytes);
  block->running = launch.block.x;
  block->warps.resize((launch.block.x + kLanes - 1) / kLanes);
  for (std::size_t w = 0; w < block->warps.size(); ++w) {
    Warp& warp = block->warps[w];
    warp.block = block.get();
    warp.index = w;
    warp.pace = pace_beside(stream.pace, kWarpPaces);
    warp.lanes.resize(std::min<std::size_t>(kLanes, launch.block.x - w * kLanes));
    for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) {
      Fiber& fiber = warp.lanes[lane];
      static_cast<Place&>(fiber) = {{static_cast<u32>(w * kLanes + lane), 0, 0}, index, launch.block, launch.grid};
      fiber.warp = &warp;
      fiber.lane = lane;
      machine->stack_of[&fiber] = machine->free_stacks.back();
      machine->free_stacks.pop_back();
    }
    queue(warp);
  }
  machine->blocks.push_back(std::move(block));
}

void start_cluster(Stream& stream) {
  const Launch& launch = *stream.launches[stream.current];
  const auto cluster = std::make_shared<Cluster>();
  for (u32 rank = 0; rank < launch.cluster; ++rank, ++stream.started, ++stream.running) {
    const Index index{static_cast<u32>(stream.started % launch.grid.x),
                      static_cast<u32>(stream.started / launch.grid.x % launch.grid.y),
                      static_cast<u32>(stream.started / launch.grid.x / launch.grid.y)};
    start_block(stream, index, rank, cluster);
  }
}

// Starts as many blocks as there is room for. Returns false when all launches of the stream have ended.
bool advance(Stream& stream) {
  while (stream.current < stream.launches.size()) {
    const Launch& launch = *stream.launches[stream.current];
    const u64 total = u64{launch.grid.x} * launch.grid.y * launch.grid.z;
    if (stream.started == 0) stream.pace = pace_beside(1.0, kLaunchPaces);
    while (stream.started < total && stream.running + launch.cluster <= launch.resident_blocks) start_cluster(stream);
    if (stream.running > 0) return true;
    stream.started = 0;
    ++stream.current;
  }
  return false;
}

void run_streams() {
  while (machine->error.empty()) {
    bool is_busy = false;
    for (Stream& stream : machine->streams) is_busy |= advance(stream);
    if (!is_busy) return;
    if (machine->ready.empty() && machine->copies.empty()) {
      machine->error = deadlock();
      return;
    }
    step();
  }
}

// Adds the launches to their streams. Returns the largest number of threads that can run at the same time.
std::size_t take_launches(const Launch* launches, u32 count) {
  std::vector<std::size_t> threads;
  for (const Launch* launch = launches; launch < launches + count; ++launch) {
    if (launch->grid.x % launch->cluster != 0) {
      machine->error =
          text("a grid of %u blocks in clusters of %u, expected whole clusters", launch->grid.x, launch->cluster);
    }
    threads.resize(std::max<std::size_t>(threads.size(), launch->stream + 1));
    threads[launch->stream] = std::max(threads[launch->stream], std::size_t{launch->resident_blocks} * launch->block.x);
    machine->streams.resize(threads.size());
    machine->streams[launch->stream].launches.push_back(launch);
  }
  return std::accumulate(threads.begin(), threads.end(), std::size_t{0});
}

}  // namespace
}  // namespace emulated

using namespace emulated;

extern "C" bool emulated_run(const Launch* launches, u32 num_launches, u64 seed, char* message, u32 message_bytes) {
  Machine created{};
  machine = &created;
  machine->random.seed(seed);
  constexpr double kEagerness[] = {0.0, 0.02, 0.3, 1.0};
  machine->eagerness = kEagerness[machine->pick(4)];
  const std::size_t threads = take_launches(launches, num_launches), bytes = threads * kStackBytes;
  void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    machine->error = text("no memory for the stacks of %zu threads", threads);
  } else {
    for (std::size_t i = 0; i < threads; ++i) {
      machine->free_stacks.push_back(static_cast<char*>(stacks) + i * kStackBytes);
    }
    try {
      run_streams();
    } catch (const Failure&) {
    }
    munmap(stacks, bytes);
  }
  snprintf(message, message_bytes, "%s", machine->error.c_str());
  machine = nullptr;
  return message[0] == 0;
}
