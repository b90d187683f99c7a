// A stage of a pipeline, other than the last, in its own process. It carries out the steps that the last stage sends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cuda/ranks/cuda_group.h"
#include "cuda/ranks/nccl_link.h"
#include "cuda/ranks/stage_rank.h"
#include "host/thread_pool.h"

namespace tl::cuda {

class StageWorker {
 public:
  // See CudaGroup; `engines` are those of one stage (check_stage). `num_host_blocks`: KV blocks on the host.
  StageWorker(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
              std::int64_t num_host_blocks, const std::vector<std::string>& library_directories,
              std::chrono::nanoseconds timeout);
  ~StageWorker();

  MemoryUse memory() const { return group_.memory(); }
  // See EarlierStages::connect; connects this stage's ranks.
  void connect(const Nccl& nccl, std::span<const NcclId> ids);

  // The following methods are called by one thread, in the order that StageCalls sets. They copy the inputs. Throw
  // LimitError, DeviceError.
  void capture(const StepShape& shape, std::span<const std::byte> inputs);
  // Enqueues a step. Waits while as many steps are under way as the pipeline allows. Failures are reported by watch().
  void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
            std::span<const std::byte> inputs) noexcept;

  // The following methods are called by other threads. watch() waits until close() is called, and throws DeviceError as
  // soon as a step fails.
  void watch();
  // Whether the step of this number, or a later one, has ended.
  bool has_ended(std::uint64_t number) const;
  void close();

 private:
  // An enqueued step.
  struct Flight {
    std::uint64_t number = 0;
    PinnedBuffer inputs;
    std::vector<OwnedEvent> ended;  // by rank
  };

  Flight& flight(std::uint64_t count) { return flights_[count % flights_.size()]; }
  void pack(Flight& flight, const StepShape& shape, std::span<const std::byte> inputs) const;
  void enqueue(const Flight& flight, std::span<const CopyOrder> copies, const StepShape& shape, std::size_t part);
  template <typename Use>
  void for_each_rank(const Use& use);
  bool is_ended(const Flight& flight) const;
  void wait_for_end(const Flight& flight) const;

  const std::chrono::nanoseconds timeout_;
  CudaGroup group_;
  const std::size_t num_stages_;
  std::vector<std::unique_ptr<NcclRowSource>> sources_;  // by rank; empty in the first stage
  std::vector<std::unique_ptr<NcclPair>> tokens_;        // by rank of the first stage
  std::vector<std::unique_ptr<NcclRowSink>> sinks_;      // by rank
  std::vector<NcclPair*> pairs_;                         // pairs of all of the above
  std::vector<StageRank> ranks_;
  HomeBound<ThreadPool> threads_;  // one for each rank, if there are several
  std::vector<Flight> flights_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::uint64_t num_begun_ = 0, num_ended_ = 0, last_ended_ = 0;  // counts of steps; the number of the last ended step
  bool is_closed_ = false;
  std::exception_ptr failure_;
};

}  // namespace tl::cuda
