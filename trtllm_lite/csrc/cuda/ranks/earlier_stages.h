// The stages of a pipeline that run in other processes, seen from the process of the last stage. StageCalls tells them
// the steps; rows and tokens go directly from GPU to GPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_executor.h"
#include "cuda/ranks/nccl_link.h"
#include "executor/device_executor.h"
#include "executor/step.h"

namespace tl::cuda {

// Calls to the processes of the earlier stages. Once a stage has failed, all calls but fail() throw DeviceError or
// LimitError.
class StageCalls {
 public:
  virtual ~StageCalls() = default;

  // Gives a step to all stages and returns at once, without keeping the references. Steps are given in order.
  virtual void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
                    std::span<const std::byte> inputs) = 0;
  // Makes all stages capture the graph of a decode-only step, and waits for it. Called before the first step.
  virtual void capture(const StepShape& shape, std::span<const std::byte> inputs) = 0;
  // Throws if a stage has failed. `step`: the number of the step that the caller waits for.
  virtual void check(std::uint64_t step) = 0;
  // Throws if a stage has not ended the step.
  virtual void check_ended(std::uint64_t step) = 0;
  // Ends the processes, because no further step can run. Does nothing once a stage has failed.
  virtual void fail(const std::string& why) noexcept = 0;
  // The memory use of all earlier stages.
  virtual MemoryUse memory() const = 0;
};

class EarlierStages {
 public:
  // Borrows the executors of the last stage's ranks, in order. `patience`: the longest wait for a device that does not
  // answer.
  EarlierStages(std::unique_ptr<StageCalls> calls, std::vector<CudaExecutor*> ranks, std::chrono::nanoseconds patience);

  // Connects the ranks with those of other processes, which call this at the same time. `ids[r]` is the pair by which
  // rank r receives: from the rank of the same part in the previous stage, or, if r is in the first stage, from the
  // rank that draws tokens. Throws DeviceError.
  void connect(const Nccl& nccl, std::span<const NcclId> ids);
  MemoryUse memory() const { return calls_->memory(); }
  // The source of the rows of rank `part` of the last stage. Throws DeviceError before connect().
  RowSource* rows_of(std::size_t part) const;

  // See StageCalls.
  void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs);
  void capture(const StepShape& shape, const std::byte* inputs);
  void check_ended(std::uint64_t step) { calls_->check_ended(step); }
  // Enqueues the sending of tokens after each draw.
  void send_tokens();
  // Called repeatedly while a step is waited for; checks now and then whether a stage has failed. Throws DeviceError.
  void look_after(std::uint64_t step);
  // Ends all waits for other stages. No step may follow.
  void fail(const std::string& why);
  void abort();

 private:
  std::span<const std::byte> packed(const StepShape& shape, const std::byte* inputs) const;

  const std::unique_ptr<StageCalls> calls_;
  const std::vector<CudaExecutor*> ranks_;
  const std::chrono::nanoseconds patience_;
  std::vector<std::unique_ptr<NcclRowSource>> rows_;  // indexed by part
  std::unique_ptr<Outbox> tokens_;
  std::vector<NcclPair*> pairs_;  // all pairs of rows_ and tokens_
  std::chrono::steady_clock::time_point last_look_;
};

}  // namespace tl::cuda
