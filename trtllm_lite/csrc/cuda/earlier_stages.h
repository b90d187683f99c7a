// The stages of a pipeline that compute in other processes, before the last one, which is here. What a step is they are
// told by whoever reaches their processes; rows and tokens go from GPU to GPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "batching/device_executor.h"
#include "batching/step.h"
#include "cuda/cuda_executor.h"
#include "cuda/nccl_link.h"

namespace tl::cuda {

// How the processes are reached. All calls but fail() throw DeviceError, or LimitError, once a stage has failed.
class StageCalls {
 public:
  virtual ~StageCalls() = default;

  // Hands a step to all of them, and returns at once; nothing is borrowed longer. Steps come in order.
  virtual void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
                    std::span<const std::byte> inputs) = 0;
  // Has all of them capture the graph of a decode-only step, and waits for it. It comes before the first step.
  virtual void capture(const StepShape& shape, std::span<const std::byte> inputs) = 0;
  // Throws if a stage has failed since, in a step of this number.
  virtual void check(std::uint64_t step) = 0;
  // Throws if a stage has not ended the step.
  virtual void check_ended(std::uint64_t step) = 0;
  // No step can be carried out any more: ends the processes. Does nothing once a stage has failed.
  virtual void fail(const std::string& why) noexcept = 0;
  // Of all of them.
  virtual MemoryUse memory() const = 0;
};

class EarlierStages {
 public:
  // Borrows the executors of the last stage's ranks, in order. It waits for devices that do not answer no longer than
  // `patience`.
  EarlierStages(std::unique_ptr<StageCalls> calls, std::vector<CudaExecutor*> ranks, std::chrono::nanoseconds patience);

  // Connects the ranks with others, which do the same meanwhile: what rank r receives comes by pair r of `ids`, from
  // the rank of the same part in the stage before, or in the first stage from the rank that draws tokens. Throws
  // DeviceError.
  void connect(const Nccl& nccl, std::span<const NcclId> ids);
  MemoryUse memory() const { return calls_->memory(); }
  // Where the rank of that number in the last stage has its rows from. Throws DeviceError before connect().
  RowSource* rows_of(std::size_t part) const;

  // What StageCalls says.
  void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape, const std::byte* inputs);
  void capture(const StepShape& shape, const std::byte* inputs);
  void check_ended(std::uint64_t step) { calls_->check_ended(step); }
  // Puts what sends the tokens behind the draw of each step.
  void send_tokens();
  // For those who wait for a step, again and again: now and then it looks whether a stage has failed. Throws
  // DeviceError.
  void look_after(std::uint64_t step);
  // Ends what waits for other stages; no step comes any more.
  void fail(const std::string& why);
  void abort();

 private:
  std::span<const std::byte> packed(const StepShape& shape, const std::byte* inputs) const;

  const std::unique_ptr<StageCalls> calls_;
  const std::vector<CudaExecutor*> ranks_;
  const std::chrono::nanoseconds patience_;
  std::vector<std::unique_ptr<NcclRowSource>> rows_;  // by part
  std::unique_ptr<Outbox> tokens_;
  std::vector<NcclPair*> pairs_;  // of both
  std::chrono::steady_clock::time_point last_look_;
};

}  // namespace tl::cuda
