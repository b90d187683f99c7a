// A device whose steps bring their logits to the host, where rows are sampled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "executor/device_executor.h"
#include "host/home_process.h"
#include "host/step_inputs.h"
#include "host/thread_pool.h"

namespace tl {

// Sampling threads of executors that compute elsewhere: sampling takes little time compared to a step.
constexpr int kMaxSamplingThreads = 8;

class LogitsExecutor : public DeviceExecutor {
 public:
  using LogitsUse = std::function<void(std::span<const float> logits, ThreadPool& pool)>;

  // The number of stages that a step passes through. Each stage may work on a different step at a time.
  virtual int num_stages() const = 0;
  // begin() starts a step; finish() ends the oldest one and calls `use` with the step's logits, float32[num
  // logits_indices, vocab_size], and an idle thread pool. Both are valid only within the call. (A pipeline stage other
  // than the last gives what the next stage receives instead of logits.) At most num_stages() steps are begun and not
  // finished, and what their requests refer to must live until they are. A thread may begin a step while another
  // finishes one. Both throw LimitError if the request exceeds a limit, EngineError in a forked child process,
  // DeviceError. If begin() throws, the step was not begun. If finish() throws, the step is over and `use` was not
  // called; in the caches, only positions from the past_lens of the request's sequences on may have changed.
  virtual void begin(const StepRequest& request) = 0;
  virtual void finish(const LogitsUse& use) = 0;

  // Begins and finishes a step. No other steps may be in progress. Steps of several threads take turns.
  void step(const StepRequest& request, const LogitsUse& use);
  // Like step(), but returns the logits. For encoders, the result has a row of output for each sequence.
  std::unique_ptr<float[]> step(const StepRequest& request);

  // Copies whole KV blocks of block_bytes() each: the keys and values of all layers. Copies take turns as steps do, and
  // are made while no step is in progress.
  virtual std::size_t block_bytes() const = 0;
  virtual void copy_block(std::int64_t src, std::int64_t dst) = 0;
  virtual void save_block(std::int64_t block, std::span<std::byte> out) = 0;
  virtual void load_block(std::int64_t block, std::span<const std::byte> data) = 0;

  // The number of threads of the pool that `use` gets.
  virtual int num_threads() const = 0;
  std::int64_t vocab_size() const { return engine().manifest().model.vocab_size; }
  int num_slots() const { return static_cast<int>(engine().plan().symbols[Symbol::kNumSlots]); }

 private:
  std::unique_ptr<StepExecutor> make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) override;

  HomeProcess home_;
  std::mutex turn_;  // held during step()
};

// An executor of one stage, which computes a step in finish().
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
