// An engine that is loaded on a device: its weights, KV cache and workspace, and what the event loop drives. Each kind
// of device derives its own; backends.h finds the one for an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batching/step.h"
#include "engine/engine.h"
#include "expert_counts.h"
#include "step_output.h"

namespace tl {

class Adapter;

// Bytes that are reserved. The workspace includes the scratch memory of every thread of a CPU.
struct MemoryUse {
  std::size_t weights = 0;
  std::size_t kv_cache = 0;
  std::size_t workspace = 0;
  std::size_t adapters = 0;
};

class DeviceExecutor {
 public:
  virtual ~DeviceExecutor() = default;

  virtual const Engine& engine() const = 0;
  // Blocks of the KV cache.
  virtual std::int64_t num_blocks() const = 0;
  virtual MemoryUse memory() const = 0;
  // Throws ArgumentError for an encoder, whose steps make a row for each sequence (Manifest::embedding_size).
  void check_makes_logits() const;
  // What the last step computed as the output `name` of the plan; takes turns with steps. Throws ArgumentError if the
  // plan has no such output, LimitError if the step had fewer rows.
  virtual StepOutput output(const std::string& name, const RowSlice& slice) = 0;

  // What routers have chosen since the engine was loaded, in order of layers, of those that compute in this process.
  // Steps go on meanwhile, so that some routers may have counted a step that others have not.
  virtual std::vector<ExpertCounts> expert_counts() { return {}; }

  // Puts an adapter where steps find it: on devices with memory of their own, in a slot of theirs that no running
  // request has. It comes before the requests that run with it; one thread may call it while steps run. Throws
  // LimitError, DeviceError.
  virtual void place_adapter(Adapter&, int /*slot*/) {}

  // Makes the interface that an event loop of batches up to `max_batch_size` drives, and borrows this executor for it.
  // Swapped-out requests may take `num_host_blocks` KV blocks of the host's memory. Throws LimitError, DeviceError.
  virtual std::unique_ptr<StepExecutor> make_step_executor(std::int64_t num_host_blocks, int max_batch_size) = 0;
};

}  // namespace tl
