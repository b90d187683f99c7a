// A device whose steps bring their logits to the host, where rows are sampled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "batching/device_executor.h"
#include "home_process.h"
#include "host/step_inputs.h"
#include "host/thread_pool.h"

namespace tl {

// Of executors that compute elsewhere: sampling takes little time beside a step.
constexpr int kMaxSamplingThreads = 8;

class LogitsExecutor : public DeviceExecutor {
 public:
  using LogitsUse = std::function<void(std::span<const float> logits, ThreadPool& pool)>;

  // Stages that a step passes through one after the other; each may compute another step meanwhile.
  virtual int num_stages() const = 0;
  // begin() takes a step, and finish() ends the oldest that was begun: it hands `use` the step's logits,
  // float32[num logits_indices, vocab_size], and a thread pool, which is idle then. Both are valid within the call
  // only. (One stage of a pipeline, if it is not the last, makes what the next one receives instead.) At most
  // num_stages() steps are begun and not finished, and what their requests name stays until they are. A thread may
  // begin a step while another finishes one. Both throw LimitError if the request is not within the limits, EngineError
  // in a fork of the process, DeviceError. When begin() throws, the step was not begun; when finish() does, it is over,
  // `use` was not called, and of the caches nothing has changed but, perhaps, what lies behind the past_lens of the
  // request's sequences.
  virtual void begin(const StepRequest& request) = 0;
  virtual void finish(const LogitsUse& use) = 0;

  // Begins and finishes a step, where no others are begun. Steps of several threads run one after the other.
  void step(const StepRequest& request, const LogitsUse& use);
  // The same as step() with the logits for a result. Encoders' steps hand `use` a row for each sequence instead.
  std::unique_ptr<float[]> step(const StepRequest& request);

  // Copies whole KV blocks: the keys and values of all layers, block_bytes() in all. Like those of step(), copies take
  // turns, and come when no step is begun.
  virtual std::size_t block_bytes() const = 0;
  virtual void copy_block(std::int64_t src, std::int64_t dst) = 0;
  virtual void save_block(std::int64_t block, std::span<std::byte> out) = 0;
  virtual void load_block(std::int64_t block, std::span<const std::byte> data) = 0;

  // Threads of the pool that `use` gets.
  virtual int num_threads() const = 0;
  std::int64_t vocab_size() const { return engine().manifest().model.vocab_size; }
  int num_slots() const { return static_cast<int>(engine().plan().symbols[Symbol::kNumSlots]); }

  std::unique_ptr<StepExecutor> make_step_executor(std::int64_t num_host_blocks, int max_batch_size) final;

 private:
  HomeProcess home_;
  std::mutex turn_;  // of step()
};

// An executor of one stage, which computes a step when it is to finish.
class OneStageExecutor : public LogitsExecutor {
 public:
  int num_stages() const final { return 1; }
  void begin(const StepRequest& request) final { begun_ = request; }
  void finish(const LogitsUse& use) final { compute(begun_, use); }

 private:
  virtual void compute(const StepRequest& request, const LogitsUse& use) = 0;

  StepRequest begun_;
};

}  // namespace tl
