#include "executor/device_executor.h"

#include "errors.h"

namespace tl {

void DeviceExecutor::check_makes_logits() const {
  if (engine().manifest().embedding_size == 0) return;
  throw ArgumentError(
      "expected an engine that makes logits, found an encoder: compute a step and read its sentence_embedding");
}

}  // namespace tl
