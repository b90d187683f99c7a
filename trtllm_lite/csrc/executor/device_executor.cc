#include "executor/device_executor.h"

#include "engine/module.h"
#include "errors.h"

namespace tl {

void DeviceExecutor::check_makes_logits() const {
  if (generates(only_module(engine().manifest()))) return;
  throw ArgumentError(
      "expected an engine that makes logits, found an encoder: compute a step and read its sentence_embedding");
}

}  // namespace tl
