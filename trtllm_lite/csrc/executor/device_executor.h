// An engine loaded on a device, with its weights, KV cache and workspace. An event loop drives it. Each kind of device
// has its own derived class; backends.h chooses the class for an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "executor/expert_counts.h"
#include "executor/slab_layout.h"
#include "executor/step.h"
#include "executor/step_output.h"

namespace tl {

class Adapter;

// Reserved bytes. The workspace includes the scratch memory of every CPU thread.
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
  // Number of blocks of the KV cache.
  virtual std::int64_t num_blocks() const = 0;
  virtual MemoryUse memory() const = 0;
  // Throws ArgumentError for an encoder, whose steps make one row per sequence and no logits.
  void check_makes_logits() const;
  // Rows of the plan's output `name` as the last step computed them. Takes turns with steps. Throws ArgumentError if
  // the plan has no such output, LimitError if the step had fewer rows.
  virtual StepOutput output(const std::string& name, const RowSlice& slice) = 0;

  // How often routers have chosen each expert since the engine was loaded: for each layer that runs in this process, in
  // order. Steps go on meanwhile, so some routers may have counted a step that others have not.
  virtual std::vector<ExpertCounts> expert_counts() { return {}; }

  // Makes an adapter available to steps. A device with its own memory copies it into its adapter slot `slot`, which no
  // running request may use. Called before requests use the adapter; one thread may call it while steps run. Throws
  // LimitError, DeviceError.
  virtual void place_adapter(Adapter&, int /*slot*/) {}

  // Memory that moves between the KV cache and adapter slots while steps run. The same thread calls these as
  // place_adapter(). Throw DeviceError.
  virtual SlabLayout lendable_slabs() const { return {}; }
  // The slabs of the KV cache that a slot needs before an adapter is placed there.
  virtual int num_missing_slabs(int /*slot*/) const { return 0; }
  // Takes slabs from the KV cache, whose blocks no step reaches (EventLoop::lend_slabs).
  virtual void give_to_adapters(std::span<const int> /*slabs*/) {}
  // Makes the memory of a slot that no request uses ready for other slots, once no step in flight reads it.
  virtual void empty_adapter_slot(int /*slot*/) {}
  // Returns the slabs that have come back to the KV cache, with memory that no slot uses.
  virtual std::vector<int> take_from_adapters() { return {}; }
  // Slabs of the KV cache that adapters have.
  virtual int num_lent_slabs() const { return 0; }

  // Makes the interface that an event loop with batches of up to `max_batch_size` drives; it borrows this executor.
  // `num_host_blocks`: KV blocks on the host. Throws LimitError, DeviceError.
  std::unique_ptr<StepExecutor> make_step_executor(std::int64_t num_host_blocks, int max_batch_size);

 private:
  // Make the steps of an engine that makes logits, or those of an encoder. Encoders run on one device (check_plan), so
  // executors of several devices have no steps for them, and throw ArgumentError.
  virtual std::unique_ptr<StepExecutor> make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) = 0;
  virtual std::unique_ptr<StepExecutor> make_encoder_steps();
};

}  // namespace tl
