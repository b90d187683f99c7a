#include <cstdarg>
#include <cstdio>

#include "state.h"

namespace emulated {
namespace {

std::string formatted(const char* format, va_list arguments) {
  char buffer[512];
  vsnprintf(buffer, sizeof buffer, format, arguments);
  return buffer;
}

std::string name_of(const Block& block) {
  const std::string name = text("block (%u, %u)", block.index.x, block.index.y);
  if (machine->streams.size() == 1) return name;
  return text("stream %u, %s", block.launch->stream, name.c_str());
}

std::string describe(const Block& block) {
  std::string found;
  for (const Warp& warp : block.warps) {
    std::map<std::string, int> waits;
    for (const Fiber& fiber : warp.lanes) {
      if (fiber.status == Fiber::kWaiting) ++waits[text("%s 0x%x", fiber.waits_at, fiber.number)];
    }
    for (const auto& [what, lanes] : waits) {
      found += text("\n  %s, warp %d: ", name_of(block).c_str(), warp.index);
      found += text("%d lanes wait at %s", lanes, what.c_str());
    }
  }
  return found;
}

}  // namespace

std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string result = formatted(format, arguments);
  va_end(arguments);
  return result;
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
      found += text("\n  barrier %d has %u of %u threads", id, barrier.arrived, barrier.threads);
    }
  }
  return found;
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const std::string what = formatted(format, arguments);
  va_end(arguments);
  if (machine->error.empty()) {
    machine->error = text("%s, thread %u: ", name_of(my_block()).c_str(), here->thread.x) + what;
  }
  if (!machine->in_fiber) throw Failure();
  _longjmp(machine->scheduler, 1);
}

}  // namespace emulated
