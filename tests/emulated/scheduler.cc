#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "state.h"

namespace emulated {
namespace {

std::string text(const char* format, va_list arguments) {
  char buffer[512];
  vsnprintf(buffer, sizeof buffer, format, arguments);
  return buffer;
}

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string result = text(format, arguments);
  va_end(arguments);
  return result;
}

void switch_to_scheduler() {
  if (_setjmp(me().state) == 0) _longjmp(machine->scheduler, 1);
}

void queue(Warp& warp) {
  if (warp.queued) return;
  warp.queued = true;
  machine->ready.push_back(&warp);
}

void run_fiber() {
  (*machine->body)();
  me().status = Fiber::kDone;
  _longjmp(machine->scheduler, 1);
}

__attribute__((noinline)) void resume(Fiber& fiber) {
  here = &fiber;
  machine->in_fiber = true;
  if (_setjmp(machine->scheduler) != 0) {
    machine->in_fiber = false;
    return;
  }
  if (fiber.started) _longjmp(fiber.state, 1);
  fiber.started = true;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = machine->stack_of.at(&fiber);
  fiber.context.uc_stack.ss_size = kStackBytes;
  makecontext(&fiber.context, run_fiber, 0);
  setcontext(&fiber.context);
}

void start_block(Index index, u32 rank, std::shared_ptr<Cluster> cluster) {
  const LaunchConfig& config = *machine->config;
  auto block = std::make_unique<Block>();
  block->index = index;
  block->rank = rank;
  block->cluster = cluster;
  cluster->blocks.push_back(block.get());
  block->storage = std::make_unique<char[]>(config.shared_bytes + kGuardBytes + kStaticBytes + 1024);
  const auto address = reinterpret_cast<std::uintptr_t>(block->storage.get());
  block->memory = block->storage.get() + (1024 - address % 1024) % 1024;
  std::memset(block->memory, kPoison, config.shared_bytes + kGuardBytes + kStaticBytes);
  block->running = config.block.x;
  block->warps.resize((config.block.x + kLanes - 1) / kLanes);
  for (std::size_t w = 0; w < block->warps.size(); ++w) {
    Warp& warp = block->warps[w];
    warp.block = block.get();
    warp.index = w;
    warp.lanes.resize(std::min<std::size_t>(kLanes, config.block.x - w * kLanes));
    for (std::size_t lane = 0; lane < warp.lanes.size(); ++lane) {
      Fiber& fiber = warp.lanes[lane];
      static_cast<Place&>(fiber) = {{static_cast<u32>(w * kLanes + lane), 0, 0}, index, config.block, config.grid};
      fiber.warp = &warp;
      fiber.lane = lane;
      machine->stack_of[&fiber] = machine->free_stacks.back();
      machine->free_stacks.pop_back();
    }
    queue(warp);
  }
  machine->blocks.push_back(std::move(block));
}

void end_block(Block& block) {
  for (const BulkCopy& copy : machine->copies) {
    if (copy.block == &block) fail("the block ends before a bulk copy of %u bytes has landed", copy.bytes);
  }
  for (int id = 0; id < kNamedBarriers; ++id) {
    const NamedBarrier& barrier = block.barriers[id];
    if (barrier.arrived.empty()) continue;
    fail("the block ends when %zu of %u threads have arrived at barrier %d", barrier.arrived.size(), barrier.threads,
         id);
  }
  const u32 size = machine->config->shared_bytes;
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
}

std::string describe(const Block& block) {
  std::string found;
  for (const Warp& warp : block.warps) {
    std::map<std::string, int> waits;
    for (const Fiber& fiber : warp.lanes) {
      if (fiber.status == Fiber::kWaiting) ++waits[text("%s 0x%x", fiber.waits_at, fiber.number)];
    }
    for (const auto& [what, lanes] : waits) {
      found += text("\n  block (%u, %u), warp %d: ", block.index.x, block.index.y, warp.index);
      found += text("%d lanes wait at %s", lanes, what.c_str());
    }
  }
  return found;
}

std::string deadlock() {
  std::string found = "deadlock:";
  for (const auto& block : machine->blocks) {
    found += describe(*block);
    for (const auto& [address, barrier] : block->mbarriers) {
      if (barrier.waiting.empty()) continue;
      found += text("\n  mbarrier 0x%x is in phase %u and lacks %u arrivals and %lld bytes", address, barrier.phase,
                    barrier.missing, barrier.bytes);
    }
    for (int id = 0; id < kNamedBarriers; ++id) {
      const NamedBarrier& barrier = block->barriers[id];
      if (barrier.waiting.empty()) continue;
      found += text("\n  barrier %d has %zu of %u threads", id, barrier.arrived.size(), barrier.threads);
    }
  }
  return found;
}

// One warp goes on, each of its lanes up to where it waits.
void step() {
  if (!machine->copies.empty() && (machine->ready.empty() || machine->chance(machine->eagerness))) land_any();
  if (machine->ready.empty()) return;
  const std::size_t at = machine->pick(machine->ready.size());
  Warp& warp = *machine->ready[at];
  machine->ready[at] = machine->ready.back();
  machine->ready.pop_back();
  warp.queued = false;
  here = &warp.lanes[0];
  if (!warp.work.empty() && machine->chance(machine->eagerness)) finish_work(warp, warp.work.front().group + 1);
  for (Fiber& fiber : warp.lanes) {
    if (fiber.status != Fiber::kReady) continue;
    resume(fiber);
    if (!machine->error.empty()) return;
    if (fiber.status == Fiber::kDone && --warp.block->running == 0) {
      end_block(*warp.block);
      return;
    }
  }
  const auto is_ready = [](const Fiber& fiber) { return fiber.status == Fiber::kReady; };
  if (std::any_of(warp.lanes.begin(), warp.lanes.end(), is_ready)) queue(warp);
}

void run_blocks() {
  const LaunchConfig& config = *machine->config;
  const u64 total = u64{config.grid.x} * config.grid.y * config.grid.z;
  if (config.grid.x % config.cluster != 0) {
    machine->error = text("a grid of %u blocks in clusters of %u", config.grid.x, config.cluster);
    return;
  }
  u64 started = 0;
  while (machine->error.empty()) {
    const auto running = [](const auto& block) { return block->running > 0; };
    auto busy = std::count_if(machine->blocks.begin(), machine->blocks.end(), running);
    while (started < total && busy + config.cluster <= config.resident_blocks) {
      const auto cluster = std::make_shared<Cluster>();
      for (u32 rank = 0; rank < config.cluster; ++rank, ++started, ++busy) {
        const Index index{static_cast<u32>(started % config.grid.x),
                          static_cast<u32>(started / config.grid.x % config.grid.y),
                          static_cast<u32>(started / config.grid.x / config.grid.y)};
        start_block(index, rank, cluster);
      }
    }
    if (busy == 0) return;
    if (machine->ready.empty() && machine->copies.empty()) {
      machine->error = deadlock();
      return;
    }
    step();
  }
}

}  // namespace

Place* here;
Machine* machine;

void wait(const char* at, u32 number) {
  me().status = Fiber::kWaiting;
  me().waits_at = at;
  me().number = number;
  switch_to_scheduler();
}

void wake(Fiber& fiber) {
  fiber.status = Fiber::kReady;
  queue(*fiber.warp);
}

void wake(std::vector<Fiber*>& fibers) {
  for (Fiber* fiber : fibers) wake(*fiber);
  fibers.clear();
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string what = text(format, arguments);
  va_end(arguments);
  if (machine->error.empty()) {
    machine->error = text("block (%u, %u), thread %u: ", here->block.x, here->block.y, here->thread.x) + what;
  }
  if (!machine->in_fiber) throw Failure();
  _longjmp(machine->scheduler, 1);
}

void meet(const char* what, void* mine, void (*act)(void* const*)) {
  Warp& warp = *me().warp;
  if (warp.met > 0 && std::strcmp(warp.meeting, what) != 0) {
    fail("%s, while other lanes of the warp are at %s", what, warp.meeting);
  }
  warp.meeting = what;
  warp.operands[me().lane] = mine;
  if (++warp.met < kLanes) return wait(what);
  warp.met = 0;
  act(warp.operands);
  for (Fiber& fiber : warp.lanes) fiber.status = Fiber::kReady;
}

void pause() {
  constexpr int kTurns[] = {0, 0, 1, 5, 40};
  for (int turns = kTurns[machine->pick(std::size(kTurns))]; turns > 0; --turns) switch_to_scheduler();
}

bool launch(const LaunchConfig& config, const Body& body, char* message, u32 message_bytes) {
  Machine created{};
  machine = &created;
  machine->config = &config;
  machine->body = &body;
  machine->random.seed(config.seed);
  constexpr double kEagerness[] = {0.0, 0.02, 0.3, 1.0};
  machine->eagerness = kEagerness[machine->pick(4)];
  const std::size_t threads = std::size_t{config.resident_blocks} * config.block.x, bytes = threads * kStackBytes;
  void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    machine->error = text("no memory for the stacks of %zu threads", threads);
  } else {
    for (std::size_t i = 0; i < threads; ++i) {
      machine->free_stacks.push_back(static_cast<char*>(stacks) + i * kStackBytes);
    }
    try {
      run_blocks();
    } catch (const Failure&) {
    }
    munmap(stacks, bytes);
  }
  snprintf(message, message_bytes, "%s", machine->error.c_str());
  machine = nullptr;
  return message[0] == 0;
}

}  // namespace emulated
