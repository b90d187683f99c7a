// An engine on a GPU: its memory, its programs, and the graphs of its decode steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "batching/device_executor.h"
#include "cuda/adapter_memory.h"
#include "cuda/device.h"
#include "cuda/input_layout.h"
#include "cuda/measure/time_products.h"
#include "cuda/measure/timed_values.h"
#include "cuda/program.h"
#include "cuda/rank_watchdog.h"
#include "cuda/weights.h"

namespace tl::cuda {

// Where a rank has its arena and its state.
struct RankMemory {
  DevicePtr arena = 0, state = 0;
};

// What a rank must know of others: where those of its stage have their memory, in order, and the state of the rank that
// draws tokens.
struct RankPeers {
  std::vector<RankMemory> stage;
  DevicePtr drawing = 0;
};

// What one step computes, in the order of its rows: num_decode_seqs of one new token each, then the others.
struct StepShape {
  std::int64_t num_tokens = 0;
  std::int64_t num_seqs = 0;
  std::int64_t num_decode_seqs = 0;
  std::int64_t num_logits = 0;
  // Every row is a decode row, and row i of the logits belongs to it. Such a step is padded to padded_rows(), and
  // launched as a graph where one was captured.
  bool decode_only = false;
  // A request of it has an adapter.
  bool adapters = false;
};

class CudaExecutor final : public DeviceExecutor {
 public:
  // Borrows the engine. `num_blocks`: of the KV cache; 0 for the manifest's. `library_directories`: where cuBLASLt may
  // lie besides where the system finds it. An engine that borrows features reads those that `features_of` keeps, which
  // must outlive it. `num_loras`: slots for adapters. Throws DeviceError (no such GPU, or another than it was built
  // for; no driver, no cuBLASLt), LimitError (not enough memory on it), ArgumentError (no features that fit).
  CudaExecutor(const Engine& engine, int device, std::int64_t num_blocks, std::vector<std::string> library_directories,
               const CudaExecutor* features_of = nullptr, int num_loras = 0);
  ~CudaExecutor() override;
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;

  const Engine& engine() const override { return engine_; }
  const Plan& plan() const { return plan_; }
  const Device& device() const { return device_; }
  std::int64_t num_blocks() const override { return num_blocks_; }
  // Captures the decode steps of batches up to `max_batch_size`.
  std::unique_ptr<StepExecutor> make_step_executor(std::int64_t num_host_blocks, int max_batch_size) override;
  // Of the inputs of the largest step.
  std::size_t max_input_bytes() const { return inputs_.size(); }
  std::int64_t max_logits() const { return plan_.symbols[Symbol::kNumLogits]; }
  int num_slots() const { return static_cast<int>(plan_.symbols[Symbol::kNumSlots]); }
  std::int64_t table_columns() const { return plan_.symbols[Symbol::kMaxBlocksPerSeq]; }
  int num_cache_groups() const { return static_cast<int>(engine_.manifest().kv_cache.groups.size()); }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override;
  // Copies beside the steps.
  std::vector<ExpertCounts> expert_counts() override;
  void place_adapter(Adapter& adapter, int slot) override;
  int num_loras() const { return adapters_.num_slots(); }
  // Held by those who run steps by hand, or read the cache: they take turns. (An event loop has the executor to
  // itself.)
  std::mutex& turn() { return turn_; }

  // The block behind those of requests, which padded rows write to.
  std::int32_t spare_block() const { return static_cast<std::int32_t>(num_blocks_); }
  // Rows of a decode-only step of `num_rows`, padding included; the most that such a step has.
  std::int64_t padded_rows(std::int64_t num_rows) const;
  std::int64_t max_decode_rows() const { return plan_.cuda->decode_batches.back(); }
  // `shape` has been padded if it is decode_only.
  Extents extents(const StepShape& shape) const;

  // Puts a step on the stream whose inputs, packed as InputLayout says for its extents, lie in page-locked memory that
  // stays as it is until the step has ended.
  void enqueue_step(const StepShape& shape, const std::byte* inputs);
  // The same in two parts: what makes the logits, then, with no other step between, what draws tokens of them.
  void enqueue_forward(const StepShape& shape, const std::byte* inputs);
  void enqueue_sampling(const StepShape& shape);
  // Makes graphs of the forward part of such a decode-only step and, if this rank `draws` tokens, of all of it. One has
  // been carried out, and none is in flight.
  void capture(const StepShape& shape, bool draws);
  // Whether such a step is launched as a graph.
  bool has_captured(const StepShape& shape) const { return graphs_of(shape) != nullptr; }
  // Page-locked memory for the inputs of a step that is run by hand; whoever has the turn writes it.
  std::byte* staged_inputs();
  // Waits for all that is on the stream.
  void synchronize() const;

  RankMemory rank_memory() const { return {arena_.address(), state_.address()}; }
  // Where an engine of several ranks has its RankTable.
  DevicePtr rank_table() const { return address_of(plan_.outputs.at("ranks")); }
  // Tells an engine of several ranks where the others are, and how to say that one does not come. Those of ranks that
  // meet in NCCL are 0, but for its own.
  void set_ranks(const RankPeers& peers, const RankWatchdog& watchdog);
  // Steps are not captured any more; graphs that are in flight come to their end.
  void drop_graphs() { graphs_.clear(); }
  // Measures how long each instruction of a step of this shape takes; repeats >= 1. Steps must not be in flight.
  std::vector<InstructionTime> time_step(const StepShape& shape, const std::byte* inputs, int repeats);
  // The fastest algorithms for the products of steps of more than `above` and at most `num_tokens` tokens, by the time
  // of the largest, with as many rows of logits as there may be (time_products.h). Steps must not be in flight. Throws
  // LimitError.
  std::vector<ProductTime> time_products(std::int64_t above, std::int64_t num_tokens, int num_candidates,
                                         const TimingEffort& effort);
  // Microseconds of programs by name, of which each can carry out a step of so many tokens (time_candidates.h); the
  // step's inputs are zeros, and what no program writes are random values (timed_values.h). Steps must not be in
  // flight. Throws LimitError.
  std::vector<std::optional<double>> time_programs(const std::vector<std::string>& names, std::int64_t num_tokens,
                                                   const TimingEffort& effort);
  // The version of cuBLASLt. Throws DeviceError if there is no such library.
  std::int64_t cublaslt_version() const;
  Stream stream() const { return stream_.get(); }
  ProgramSet& programs() { return programs_; }
  // The extents of the last step, and where it leaves an output.
  const Extents& last_step() const { return last_step_; }
  // Of a tensor of the plan, by its number.
  DevicePtr address_of(int tensor) const { return addresses_[static_cast<std::size_t>(tensor)]; }
  DevicePtr address_of(const OutputPlace& place) const {
    return arena_.address() + static_cast<DevicePtr>(place.offset);
  }
  DevicePtr logits() const { return logits_; }
  DevicePtr tokens() const { return tokens_; }
  DevicePtr logprobs() const { return logprobs_; }
  DevicePtr last_tokens() const { return address_of(plan_.outputs.at("last_tokens")); }  // where ranks meet in NCCL
  DevicePtr sampling_slots() const { return sampling_slots_; }
  DevicePtr token_masks() const { return token_masks_; }
  std::int64_t max_masks() const { return plan_.symbols[Symbol::kNumSeqs]; }

  // Whole KV blocks: keys and values of all layers, block_bytes() of them. Page-locked memory on the host's side.
  std::size_t block_bytes() const;
  void copy_block(std::int32_t src, std::int32_t dst);
  void save_block(std::int32_t block, std::byte* out);
  void load_block(std::int32_t block, const std::byte* data);

 private:
  // Cache tensors of equal shape, one behind the other.
  struct CacheTensors {
    DevicePtr data;
    std::size_t block_bytes;  // of one block in one tensor
    std::size_t count;
  };
  // A decode step of one size.
  struct DecodeGraphs {
    OwnedGraphExec whole, forward;
  };

  const Program& program_of(const StepShape& shape) const;
  const DecodeGraphs* graphs_of(const StepShape& shape) const;  // null if none were captured
  // The extents of a step that is timed.
  Extents timed_extents(std::int64_t num_tokens) const;
  // Random values in the arena to compute with, and inputs of 0. Throws LimitError.
  void make_up_step(std::int64_t num_tokens, const TimingEffort& effort);
  DevicePtr borrowed_features(const CudaExecutor* from) const;
  void enqueue(const StepShape& shape, const std::byte* inputs, ProgramPart part);
  void place_tensors();
  DevicePtr place_cache_tensor(DevicePtr data, std::size_t block_bytes);
  void place_inputs(const InputLayout& layout);
  CopyEnd on_device(const CacheTensors& tensors, std::int32_t block) const;
  void copy_all(const CacheTensors& tensors, const CopyEnd& from, const CopyEnd& to, const char* what) const;

  std::mutex turn_;
  const Engine& engine_;
  const Plan& plan_;
  const std::int64_t num_blocks_;
  const std::vector<std::string> library_directories_;
  Device device_;
  OwnedStream stream_;
  OwnedStream reading_;  // of expert_counts()
  ProgramSet programs_;
  Weights weights_;
  AdapterMemory adapters_;
  TimedValues timed_values_;
  DeviceBuffer arena_, state_, inputs_, cache_;
  PinnedBuffer staged_;  // for steps that are run by hand; made for the first
  DevicePtr features_;   // of tokens, in the KV cache or in that of another engine; 0 if there are none
  bool knows_ranks_;     // of an engine of several; one of one rank has none to know
  std::vector<CacheTensors> cache_tensors_;
  Addresses addresses_;
  Extents last_step_{};
  DevicePtr logits_ = 0, tokens_ = 0, logprobs_ = 0, sampling_slots_ = 0, token_masks_ = 0;  // of the plan's outputs
  std::vector<std::pair<std::size_t, StepInputIndex>> input_tensors_;  // tensor of the plan, which input
  std::map<std::pair<std::int64_t, bool>, DecodeGraphs> graphs_;       // by padded rows, and whether with adapters
};

}  // namespace tl::cuda
