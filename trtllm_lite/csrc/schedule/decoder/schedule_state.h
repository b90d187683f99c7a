// What the parts of the decoder's scheduler share.
#pragma once

#include <cstdint>

#include "executor/step.h"
#include "schedule/decoder/kv_blocks.h"
#include "schedule/decoder/requests.h"
#include "schedule/scheduler_config.h"
#include "schedule/slot_pool.h"
#include "schedule/step_numbers.h"

namespace tl {

// Parts borrow it, read all of it, and change it by the methods of its members.
struct ScheduleState {
  ScheduleState(const SchedulerConfig& config, const KvManagerConfig& cache, StepExecutor& executor)
      : config(checked(config, cache, executor.num_slots())),
        executor(executor),
        steps{.num_stages = executor.num_stages()},
        blocks(with_steps_of(cache, config.max_num_tokens), config.policy),
        slots(executor.num_slots()),
        requests(this->config, blocks) {}
  ScheduleState(const ScheduleState&) = delete;
  ScheduleState& operator=(const ScheduleState&) = delete;

  void step_launched(std::uint64_t step) {
    steps.launched = step;
    blocks.cache().step_launched(step);
    slots.step_launched(step);
  }
  void step_ended(std::uint64_t step) {
    steps.ended = step;
    blocks.cache().step_ended(step);
    slots.step_ended(step);
  }

  const SchedulerConfig config;
  StepExecutor& executor;
  StepNumbers steps;
  KvBlocks blocks;
  SlotPool slots;
  Requests requests;  // declared after the pools that its requests hold parts of
};

}  // namespace tl
