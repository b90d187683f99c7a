#include <ucontext.h>

#include <algorithm>
#include <cstring>

#include "state.h"

namespace emulated {
namespace {

void switch_to_scheduler() {
  if (_setjmp(me().state) == 0) _longjmp(machine->scheduler, 1);
}

void run_fiber() {
  const Launch& launch = *my_block().launch;
  launch.kernel(launch.arguments);
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
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = machine->stack_of.at(&fiber);
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, run_fiber, 0);
  setcontext(&context);
}

}  // namespace

Place* here;
Machine* machine;

void queue(Warp& warp) {
  if (warp.queued) return;
  warp.queued = true;
  machine->ready.push_back(&warp);
}

void step() {
  ++machine->turns;
  const bool waits = machine->ready.empty() || machine->looks;
  machine->looks = false;
  if (!machine->copies.empty() && (waits || machine->chance(machine->eagerness))) land_any();
  if (machine->ready.empty()) return;
  const std::size_t at = machine->pick(machine->ready.size());
  Warp& warp = *machine->ready[at];
  if (warp.pace < 1.0 && !machine->chance(warp.pace)) return;
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

void meet(const char* what, void* mine, void (*act)(void* const*)) {
  Warp& warp = *me().warp;
  if (warp.met > 0 && warp.meeting != what && std::strcmp(warp.meeting, what) != 0) {
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

void look() {
  machine->looks = true;
  switch_to_scheduler();
}

u64 turns_so_far() { return machine->turns; }

}  // namespace emulated
