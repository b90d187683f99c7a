#include "executor/device_executor.h"

#include <string>

#include "engine/module.h"
#include "errors.h"

namespace tl {

void DeviceExecutor::check_makes_logits() const {
  const Module& module = only_module(engine().manifest());
  if (generates(module)) return;
  throw ArgumentError("expected an engine that makes logits, found an encoder: compute a step and read its " +
                      std::string(first_output(module.kind).name));
}

std::unique_ptr<StepExecutor> DeviceExecutor::make_step_executor(std::int64_t num_host_blocks, int max_batch_size) {
  if (!generates(only_module(engine().manifest()))) return make_encoder_steps();
  return make_decoder_steps(num_host_blocks, max_batch_size);
}

std::unique_ptr<StepExecutor> DeviceExecutor::make_encoder_steps() {
  throw ArgumentError("expected an engine that makes logits, found an encoder: load it on one CPU or GPU");
}

}  // namespace tl
