// CudaStepExecutor makes a GPU a device of the event loop. Steps are queued on one stream: a launch copies the packed
// inputs, launches a graph (or the instructions one by one), and copies the sampled tokens back; wait() waits for that
// copy's event. Tokens stay on the device between steps, so that step n+1 is queued while n runs.
//
// A step with guided rows is queued in two parts: launch() puts the part on the stream that makes logits. The part that
// draws tokens follows when the tokens of step n-1 are known (wait() for that step has read them), the texts have been
// continued, and the masks made, while the device makes the logits. A row whose mask takes longer sits the step out.
//
// Ranks are on GPUs and streams of their own. The first rank of the last stage draws the tokens, which those of the
// first stage read in its memory, or get by NCCL at the end of a step; the others compute logits alone, or what the
// next stage goes on with (stage_link.h). Where the other stages are in other processes (earlier_stages.h), all ranks
// here are the last stage's. As long as steps of other requests are queued, all stages compute. The ranks of a stage
// are put on their streams at once, by a thread each: the driver makes whoever launches wait when a stream has about a
// thousand launches, and one that waits for another rank takes no more until that rank has come.
//
// Rows that ask for more than the device's sampling kernel does (beams, logits, allowed tokens, …) are sampled on the
// host from their logits; a step that follows them is launched when they have been.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "batching/step.h"
#include "batching/step_memory.h"
#include "cuda/cuda_executor.h"
#include "cuda/earlier_stages.h"
#include "cuda/host_sampling.h"
#include "cuda/rank_communicators.h"
#include "cuda/stage_link.h"
#include "cuda/stage_rank.h"
#include "cuda/step_packer.h"
#include "cuda/token_masks.h"
#include "home_process.h"
#include "host/thread_pool.h"

namespace tl::cuda {

class CudaStepExecutor : public StepExecutor {
 public:
  // Borrows the executors, one for each rank, in order. `num_host_blocks`: KV blocks that swapped-out requests may take
  // on the host. The watchdog is theirs; one rank has none. So are communicators, which ranks have that meet in NCCL.
  // `earlier`: the stages that are elsewhere, if some are.
  CudaStepExecutor(std::span<CudaExecutor* const> ranks, std::int64_t num_host_blocks, RankWatchdog* watchdog = nullptr,
                   RankCommunicators* communicators = nullptr, EarlierStages* earlier = nullptr);
  ~CudaStepExecutor() override;

  // Captures graphs of decode steps of up to `max_batch_size` rows, each with as many drafts as there may be, without
  // adapters and with them. It is called before the first step: where memory is short, that is when it shows.
  void capture_decode_steps(int max_batch_size);

  int num_slots() const override { return executor_.num_slots(); }
  int num_stages() const override { return num_stages_; }
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
    WrittenInputs written;              // to `inputs`
    OwnedEvent copied, started, ended;  // after the copies of KV blocks, before them, and when all is done
    OwnedEvent has_logits;              // of a step with guided rows
    StepShape shape;
    LogitsPlan plan;
    std::vector<std::size_t> late;  // rows of the batch
    bool is_timed = false;  // not if nobody asks how long it takes: a step that only decodes, on engines without drafts
    bool awaits_masks = false;  // the part that draws tokens is not on the stream yet
    bool finished = false;      // `result` holds its results
    StepResult result;
  };

  // How the ranks of a stage come to their turn.
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
  void capture(const StepShape& shape, const std::byte* inputs);
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
  CudaExecutor& executor_;  // of the rank that draws tokens
  EarlierStages* const earlier_;
  const std::size_t vocab_size_;
  HostSampling host_;
  TokenMasks masks_;
  StepPacker packer_;
  SlotTables tables_;
  std::vector<std::unique_ptr<StageLink>> links_;  // to each rank of the stages here but the first, in order
  std::vector<StageRank> ranks_;
  RankWatchdog* const watchdog_;
  RankCommunicators* const communicators_;
  bool is_late_ = false;            // a step takes longer than it may
  std::vector<OwnedEvent> drawn_;   // the tokens of the last num_stages() steps, in turn
  std::uint64_t num_enqueued_ = 0;  // steps
  std::vector<Flight> flights_;     // one more than there are stages
  int oldest_ = 0;                  // of flights_
  int in_flight_ = 0;
  HomeBound<ThreadPool> threads_;  // one for each rank of a stage, that of the caller among them; null for one rank
};

}  // namespace tl::cuda
