// A stage of a pipeline, but the last, in a process of its own: it carries out the steps that it is told of.
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

#include "cuda/cuda_group.h"
#include "cuda/nccl_link.h"
#include "cuda/stage_rank.h"
#include "host/thread_pool.h"

namespace tl::cuda {

class StageWorker {
 public:
  // As CudaGroup, of the engines of one stage (check_stage). `num_host_blocks`: KV blocks that swapped-out requests may
  // take on the host.
  StageWorker(std::span<const Engine* const> engines, std::span<const int> devices, std::int64_t num_blocks,
              std::int64_t num_host_blocks, const std::vector<std::string>& library_directories,
              std::chrono::nanoseconds timeout);
  ~StageWorker();

  MemoryUse memory() const { return group_.memory(); }
  // As EarlierStages::connect, of this stage's ranks.
  void connect(const Nccl& nccl, std::span<const NcclId> ids);

  // The following are called by one thread, in the order of StageCalls. Inputs are copied.
  // Throws LimitError, DeviceError.
  void capture(const StepShape& shape, std::span<const std::byte> inputs);
  // Puts a step on the streams; it waits while more steps are under way than a pipeline has. Failures are for watch()
  // to tell.
  void step(std::uint64_t number, std::span<const CopyOrder> copies, const StepShape& shape,
            std::span<const std::byte> inputs) noexcept;

  // These are called by other threads. Waits until close() is called; throws DeviceError as soon as a step fails.
  void watch();
  // Whether a step of that number, or a later one, has ended.
  bool has_ended(std::uint64_t number) const;
  void close();

 private:
  // A step that was put on the streams.
  struct Flight {
    std::uint64_t number = 0;
    PinnedBuffer inputs;
    std::vector<OwnedEvent> ended;  // of each rank
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
  std::vector<std::unique_ptr<NcclRowSource>> sources_;  // of each rank; none in the first stage
  std::vector<std::unique_ptr<NcclPair>> tokens_;        // of each rank of the first stage
  std::vector<std::unique_ptr<NcclRowSink>> sinks_;      // of each rank
  std::vector<NcclPair*> pairs_;                         // of all these
  std::vector<StageRank> ranks_;
  HomeBound<ThreadPool> threads_;  // one for each rank, if there are several
  std::vector<Flight> flights_;

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::uint64_t num_begun_ = 0, num_ended_ = 0, last_ended_ = 0;  // steps; the number of the last that has ended
  bool is_closed_ = false;
  std::exception_ptr failure_;
};

}  // namespace tl::cuda
