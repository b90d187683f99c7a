// Executes the plan of a CPU engine step by step. The executor knows no model and no operator.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernel.h"
#include "engine/call.h"
#include "engine/engine.h"
#include "host/anonymous_memory.h"
#include "host/home_process.h"
#include "host/logits_executor.h"
#include "host/step_inputs.h"
#include "host/thread_pool.h"
#include "host/timed_step.h"
#include "ranks/rank_rendezvous.h"

namespace tl {

class CpuExecutor final : public OneStageExecutor {
 public:
  // Borrows the engine. num_threads: 0 for all cores; num_blocks: 0 for the manifest's number; isa: "auto" for the
  // best. A draft engine that reads features borrows the executor that keeps them, which must have the same number of
  // blocks. An engine of several ranks borrows the rendezvous of their steps. Throws LimitError, ArgumentError about
  // features, or EngineError if this build lacks a kernel or the rendezvous is for another number of ranks.
  CpuExecutor(const Engine& engine, std::int64_t num_threads, std::int64_t num_blocks, std::string_view isa,
              const CpuExecutor* features_of = nullptr, RankRendezvous* rendezvous = nullptr);

  std::size_t block_bytes() const override;
  void copy_block(std::int64_t src, std::int64_t dst) override;
  void save_block(std::int64_t block, std::span<std::byte> out) override;
  void load_block(std::int64_t block, std::span<const std::byte> data) override;

  std::int64_t num_blocks() const override { return num_blocks_; }
  const Engine& engine() const override { return engine_; }
  int num_threads() const override { return pool_->num_threads(); }
  std::string_view isa() const { return isa_; }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override;
  std::vector<ExpertCounts> expert_counts() override;

  // A step of an encoder in parts. begin_parts() takes a copy of its inputs; run_part() runs instructions until
  // `seconds` have passed, but at least one, and returns whether the step is over; rows() are its results. No other
  // step may run meanwhile. begin_parts() throws LimitError if the request exceeds a limit.
  void begin_parts(const StepRequest& request);
  bool run_part(double seconds);
  std::span<const float> rows() { return made(); }

  // Measures the time of each instruction of a step that has work; repeats >= 1. Throws LimitError if the request
  // exceeds a limit.
  std::vector<InstructionTime> time_step(const StepRequest& request, int repeats);

 private:
  struct Call {
    const std::string* name;
    Kernel kernel;                            // null for a collective
    const CollectiveInstruction* collective;  // null for a kernel
    const AttributeValue* attributes;
    std::size_t first_input;  // indices into operands_
    std::size_t first_output;
    std::size_t end;
  };
  // An extent of an operand that changes from step to step.
  struct VaryingExtent {
    std::size_t operand;
    int axis;
    Symbol symbol;
  };

  // num_blocks_ blocks of block_bytes each: of all layers, or of features.
  struct BlockArray {
    std::byte* data;
    std::size_t block_bytes;

    std::byte* block(std::int64_t index) const { return data + static_cast<std::size_t>(index) * block_bytes; }
  };

  // Rows of floats in the arena; the symbol gives their number.
  struct Rows {
    float* data;
    std::size_t features;
    Symbol count;
  };

  // An executor for steps of an encoder beside a paused one of `other`, with which it shares threads and weights.
  explicit CpuExecutor(const CpuExecutor& other);
  CpuExecutor(const Engine& engine, std::shared_ptr<ThreadPool> pool, std::int64_t num_blocks, std::string_view isa,
              const StepLimits& limits, AnonymousMemory::Pages arena_pages, const CpuExecutor* features_of,
              RankRendezvous* rendezvous);

  // If the encoder takes long texts, also reserves memory for steps beside a paused one.
  std::unique_ptr<StepExecutor> make_encoder_steps() override;
  Rows row_values(int index, const std::vector<std::byte*>& places) const;
  std::size_t size_of(const Rows& rows) const;
  void take_inputs(const StepRequest& request);
  // Calls `run(call)` for each call of a step that has work, in order.
  template <typename Run>
  void for_each_call(const StepRequest& request, const Run& run);
  void run_call(const Call& call, const StepRequest& request);
  void receive(std::span<const std::byte> received);
  std::span<const float> made();
  void compute(const StepRequest& request, const LogitsUse& use) override;
  std::byte* borrowed_features(const CpuExecutor* from) const;
  std::int64_t block_distance(const PlanTensor& cache) const;
  std::vector<std::byte*> place_tensors();
  void add_call(const Instruction& instruction, const std::vector<std::byte*>& places);
  void add_operands(const std::vector<int>& tensors, const std::vector<std::byte*>& places);
  bool has_work(const Call& call) const;
  void run_collective(const Call& call);
  int rank() const { return static_cast<int>(rank_); }

  const Engine& engine_;
  const Plan& plan_;
  std::string_view isa_;
  std::int64_t num_blocks_;
  std::shared_ptr<ThreadPool> pool_;
  AnonymousMemory arena_, state_;
  AnonymousMemory cache_;
  std::vector<BlockArray> blocks_;  // without borrowed features
  std::byte* features_;             // null: the engine has no features
  StepInputs inputs_;
  std::vector<Tensor> operands_;  // operands of all calls, in order
  std::vector<VaryingExtent> varying_extents_;
  std::deque<std::string> names_;  // names of the calls
  std::deque<ResolvedCall> resolved_;
  std::vector<Call> calls_;
  std::size_t next_call_ = 0;            // of a step in parts
  std::unique_ptr<CpuExecutor> beside_;  // null: no step is paused
  const std::int64_t rank_;
  RankRendezvous* rendezvous_;         // null if there is one rank
  std::vector<CollectiveSite> sites_;  // sites of the collectives, in order
  std::size_t num_met_ = 0;            // collectives so far in the current step
  std::vector<Rows> received_, made_;  // values from the previous stage, and values for the next
  std::vector<float> all_made_;
  Extents extents_;  // extents of the last step
  std::mutex mutex_;
};

}  // namespace tl
