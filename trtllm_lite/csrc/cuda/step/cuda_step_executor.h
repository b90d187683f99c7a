// CudaStepExecutor makes a GPU a device of the event loop. Steps are enqueued on one stream: a launch copies the packed
// inputs, launches a graph (or the instructions one by one), and copies the sampled tokens back; wait() waits for that
// copy's event. Tokens stay on the device between steps, so that step n+1 is enqueued while step n runs.
//
// A step with guided rows is enqueued in two parts. launch() enqueues the part that makes logits. While the device runs
// it, wait() for step n-1 reads that step's tokens, the texts are continued, and the masks are made; then the part that
// draws tokens is enqueued. A row whose masks are late draws no token in that step.
//
// Ranks have their own GPUs and streams. The first rank of the last stage draws the tokens; the ranks of the first
// stage read them in its memory, or receive them by NCCL at the end of a step. Other ranks only compute logits, or the
// rows that the next stage continues with (stage_link.h). If the other stages run in other processes
// (earlier_stages.h), all ranks here belong to the last stage. All stages compute at the same time as long as steps of
// other requests are enqueued. The ranks of a stage are enqueued concurrently, by a thread each: the driver blocks a
// launch on a stream that has about a thousand launches pending, and a stream that waits for another rank does not
// drain until that rank has come.
//
// Rows that need more than the device's sampling kernel can do (beams, logits, allowed tokens, …) are sampled on the
// host from their logits; the next step is launched only after that.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_executor.h"
#include "cuda/ranks/earlier_stages.h"
#include "cuda/ranks/rank_communicators.h"
#include "cuda/ranks/stage_link.h"
#include "cuda/ranks/stage_rank.h"
#include "cuda/step/host_sampling.h"
#include "cuda/step/step_packer.h"
#include "cuda/step/token_masks.h"
#include "executor/step.h"
#include "executor/step_memory.h"
#include "host/home_process.h"
#include "host/thread_pool.h"

namespace tl::cuda {

class CudaStepExecutor : public StepExecutor {
 public:
  // Borrows the executors, one for each rank in order. `num_host_blocks`: KV blocks on the host for swapped-out
  // requests. `watchdog`: watches these ranks; null for one rank. `communicators`: those of ranks that communicate by
  // NCCL, otherwise null. `earlier`: the stages in other processes, if any.
  CudaStepExecutor(std::span<CudaExecutor* const> ranks, std::int64_t num_host_blocks, RankWatchdog* watchdog = nullptr,
                   RankCommunicators* communicators = nullptr, EarlierStages* earlier = nullptr);
  ~CudaStepExecutor() override;

  // Captures graphs of decode steps of up to `max_batch_size` rows with the largest number of draft tokens, without and
  // with adapters. Called before the first step, so that a lack of memory shows at once. Measures what these steps take
  // if there may be draft tokens.
  void capture_decode_steps(int max_batch_size);

  int num_slots() const override { return executor_.num_slots(); }
  int num_stages() const override { return num_stages_; }
  double decode_seconds(int num_tokens) const override;
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt) override;
  void launch(const StepBatch& batch) override;
  void wait(StepResult& result) override;
  std::span<const std::size_t> late_rows() const override;

 private:
  // A step between launch() and wait().
  struct Flight {
    const StepBatch* batch = nullptr;
    PinnedBuffer inputs, records, tokens, logprobs;
    TokenMasks::Staging masks;
    WrittenInputs written;              // what `inputs` holds already
    OwnedEvent copied, started, ended;  // recorded before the copies of KV blocks, after them, and at the end
    OwnedEvent has_logits;              // recorded when a guided step has made its logits
    StepShape shape;
    LogitsPlan plan;
    std::vector<std::size_t> late;  // rows of the batch whose masks were late
    bool is_timed = false;      // false if nobody asks how long it takes: a step that only decodes, on engines without
                                // draft tokens
    bool awaits_masks = false;  // the sampling part is not on the stream yet
    bool finished = false;      // `result` holds its results
    StepResult result;
  };

  // Whether the ranks of a stage are enqueued at once, by a thread each, or one by one.
  enum class Order : std::uint8_t { kAtOnce, kOneByOne };

  template <typename Fn>
  void or_synchronize(const Fn& call);
  template <typename Fn>
  void or_give_up(const Fn& call);
  std::string synchronize();
  std::string failed_ranks() const;
  void link_stages(std::span<CudaExecutor* const> ranks);
  RowSource* source_of(std::size_t rank) const;
  Flight& flight_at(int place) { return flights_[static_cast<std::size_t>(oldest_ + place) % flights_.size()]; }
  Flight& newest() { return flight_at(in_flight_ - 1); }
  bool knows_predecessor();
  Event drawn_before() const;
  void record(const OwnedEvent& event) const;
  static double seconds_between(const OwnedEvent& first, const OwnedEvent& last);
  void capture(const StepShape& shape, const std::byte* inputs);
  void run_alone(const StepShape& shape, const std::byte* inputs);
  double time_alone(const StepShape& shape, Flight& flight);
  bool draws(const StageRank& rank) const { return rank.executor == &executor_; }
  // Calls `use` for each rank, stage by stage.
  template <typename Use>
  void for_each_rank(Order order, const Use& use);
  Order order_of(const Flight& flight) const;
  void enqueue(const StepBatch& batch, Flight& flight);
  void pack(const StepBatch& batch, Flight& flight);
  void enqueue(const StepBatch& batch, const Flight& flight, const StageRank& rank);
  void enqueue_drawing(const Flight& flight);
  void enqueue_guided(Flight& flight);
  void enqueue_end(Flight& flight);
  void copy_tokens(Flight& flight);
  void copy_logprobs(Flight& flight);
  void finish(Flight& flight);
  void finish_all();
  void wait_for_end(const Flight& flight, std::uint64_t step);
  [[noreturn]] void end_late(std::uint64_t step);
  bool is_stalled() const;
  bool is_given_up() const;
  void give_up();
  void share_tokens();
  void read_times(Flight& flight);
  void read_tokens(Flight& flight);
  void read_guided(Flight& flight);
  void read_logprobs(Flight& flight);
  std::int64_t max_draft_len() const;

  const int num_stages_;
  const std::size_t tp_size_;
  CudaExecutor& executor_;  // the executor of the rank that draws tokens
  EarlierStages* const earlier_;
  const std::size_t vocab_size_;
  HostSampling host_;
  TokenMasks masks_;
  StepPacker packer_;
  SlotTables tables_;
  std::vector<std::unique_ptr<StageLink>> links_;  // one to each rank of all stages here but the first, in order
  std::vector<StageRank> ranks_;
  RankWatchdog* const watchdog_;
  RankCommunicators* const communicators_;
  bool is_late_ = false;                // a step has exceeded its time limit
  std::vector<OwnedEvent> drawn_;       // recorded when tokens are drawn, one for each of the last num_stages() steps
  std::vector<double> decode_seconds_;  // of decode steps, by index in Plan::decode_batches
  std::uint64_t num_enqueued_ = 0;      // steps enqueued so far
  std::vector<Flight> flights_;         // num_stages() + 1 of them
  int oldest_ = 0;                      // index into flights_
  int in_flight_ = 0;
  HomeBound<ThreadPool> threads_;  // one for each rank of a stage, including the caller's; null for one rank
};

}  // namespace tl::cuda
