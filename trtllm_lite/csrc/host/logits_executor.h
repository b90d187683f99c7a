// A device whose steps bring their logits to the host, where rows are sampled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "batching/device_executor.h"
#include "host/step_inputs.h"
#include "host/thread_pool.h"

namespace tl {

class LogitsExecutor : public DeviceExecutor {
 public:
  // Runs one step and hands `use` its logits, float32[num logits_indices, vocab_size], and a thread pool, which is idle
  // then. (A stage of a pipeline that is not the last makes what the next one receives instead.) Both are valid within the call only. Steps of several threads run one after the other. Throws LimitError if
  // the request is not within the limits, EngineError in a fork of the process: then `use` was not called, and of the
  // caches nothing has changed but, perhaps, what lies behind the past_lens of the request's sequences.
  using LogitsUse = std::function<void(std::span<const float> logits, ThreadPool& pool)>;
  virtual void step(const StepRequest& request, const LogitsUse& use) = 0;
  // The same with the logits for a result.
  std::unique_ptr<float[]> step(const StepRequest& request);

  // Copies whole KV blocks: the keys and values of all layers, block_bytes() in all. Like steps, copies take turns.
  virtual std::size_t block_bytes() const = 0;
  virtual void copy_block(std::int64_t src, std::int64_t dst) = 0;
  virtual void save_block(std::int64_t block, std::span<std::byte> out) = 0;
  virtual void load_block(std::int64_t block, std::span<const std::byte> data) = 0;

  // Threads of the pool that `use` gets.
  virtual int num_threads() const = 0;
  std::int64_t vocab_size() const { return engine().manifest().model.vocab_size; }
  int num_slots() const { return static_cast<int>(engine().plan().symbols[Symbol::kNumSlots]); }

  std::unique_ptr<StepExecutor> make_step_executor(std::int64_t num_host_blocks, int max_batch_size) final;
};

}  // namespace tl
