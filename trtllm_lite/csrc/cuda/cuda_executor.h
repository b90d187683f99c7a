// An engine on a GPU: its memory, its programs, and the graphs of its decode steps.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cuda/device/adapter_memory.h"
#include "cuda/device/device.h"
#include "cuda/device/mapped_memory.h"
#include "cuda/device/program.h"
#include "cuda/device/weights.h"
#include "cuda/measure/time_products.h"
#include "cuda/measure/timed_values.h"
#include "cuda/ranks/rank_watchdog.h"
#include "cuda/step/input_layout.h"
#include "cuda/step/side_stream.h"
#include "executor/device_executor.h"

namespace tl::cuda {

// Addresses of a rank's arena and state.
struct RankMemory {
  DevicePtr arena = 0, state = 0;
};

// What a rank must know of other ranks: the memory of all ranks of its stage, in order, and the state of the rank that
// draws tokens.
struct RankPeers {
  std::vector<RankMemory> stage;
  DevicePtr drawing = 0;
};

// What one step computes. Its rows: num_decode_seqs decode sequences of at most 1 + max_draft_len new tokens each, then
// the other sequences.
struct StepShape {
  std::int64_t num_tokens = 0;
  std::int64_t num_seqs = 0;
  std::int64_t num_decode_seqs = 0;
  std::int64_t num_decode_tokens = 0;
  std::int64_t num_logits = 0;
  std::int64_t num_token_rows = 0;  // embeddings that take the place of tokens
  // True if every row is a decode row and every token has a row of logits, with the same index. Such a step is padded
  // to padded_rows() tokens and as many sequences, and launched as a graph if one was captured.
  bool decode_only = false;
  // True if a request of the step has an adapter.
  bool adapters = false;
};

class CudaExecutor final : public DeviceExecutor {
 public:
  // Borrows the engine. `num_blocks`: blocks of the KV cache; 0 means the manifest's number. `library_directories`:
  // where to look for cuBLASLt besides the system's search path. `features_of`: the executor whose features this engine
  // reads, if it is a draft head; it must outlive this one. `num_loras`: slots for adapters, which take `adapter_bytes`
  // of the device's memory, and borrow the rest from the KV cache. Throws DeviceError (no such GPU, a GPU that the
  // engine was not built for, no driver, no cuBLASLt), LimitError (too little GPU memory), ArgumentError (features that
  // do not fit).
  CudaExecutor(const Engine& engine, int device, std::int64_t num_blocks, std::vector<std::string> library_directories,
               const CudaExecutor* features_of = nullptr, int num_loras = 0,
               std::size_t adapter_bytes = std::numeric_limits<std::size_t>::max());
  ~CudaExecutor() override;
  CudaExecutor(const CudaExecutor&) = delete;
  CudaExecutor& operator=(const CudaExecutor&) = delete;

  const Engine& engine() const override { return engine_; }
  const Plan& plan() const { return plan_; }
  const Device& device() const { return device_; }
  std::int64_t num_blocks() const override { return num_blocks_; }
  // Bytes of the inputs of the largest step.
  std::size_t max_input_bytes() const { return inputs_.size(); }
  std::int64_t max_logits() const { return plan_.symbols[Symbol::kNumLogits]; }
  int num_slots() const { return static_cast<int>(plan_.symbols[Symbol::kNumSlots]); }
  std::int64_t table_columns() const { return plan_.symbols[Symbol::kMaxBlocksPerSeq]; }
  // The bytes of a row that takes the place of a token; 0 if the engine takes none.
  std::int64_t token_row_bytes() const { return token_row_bytes_; }
  InputLayout input_layout(const Extents& step) const { return {step, table_columns(), token_row_bytes_}; }
  int num_cache_groups() const { return static_cast<int>(engine_.manifest().kv_cache.groups.size()); }
  MemoryUse memory() const override;
  StepOutput output(const std::string& name, const RowSlice& slice) override;
  // Copies the counts on a stream of its own, so that steps go on.
  std::vector<ExpertCounts> expert_counts() override;
  void place_adapter(Adapter& adapter, int slot) override;
  SlabLayout lendable_slabs() const override;
  int num_missing_slabs(int slot) const override { return adapters_.num_missing(slot); }
  void give_to_adapters(std::span<const int> slabs) override;
  void empty_adapter_slot(int slot) override;
  std::vector<int> take_from_adapters() override;
  int num_lent_slabs() const override { return static_cast<int>(lent_slabs_.size()); }
  int num_loras() const { return adapters_.num_slots(); }
  // A mutex for callers without an event loop that run steps or read the cache: each holds it for its turn. (An event
  // loop has the executor to itself.)
  std::mutex& turn() { return turn_; }

  // The first of the spare blocks, which follow the blocks of requests. Padding rows write to them.
  std::int32_t spare_block() const { return static_cast<std::int32_t>(num_blocks_); }
  // Tokens of a decode-only step of `num_rows` after padding, and the largest number of tokens of such a step.
  std::int64_t padded_rows(std::int64_t num_rows) const;
  std::int64_t max_decode_rows() const { return plan_.cuda->decode_batches.back(); }
  // The extents of a step of this shape, which must be padded already if it is decode_only.
  Extents extents(const StepShape& shape) const;

  // Enqueues a step. `inputs` are packed as InputLayout says for the step's extents, in page-locked memory that must
  // not change until the step has ended.
  void enqueue_step(const StepShape& shape, const std::byte* inputs);
  // The same on the side stream of an encoder.
  void enqueue_beside(const StepShape& shape, const std::byte* inputs);
  // Enqueue a step in two parts: the forward pass that makes logits, then the sampling of tokens. No other step may
  // come in between.
  void enqueue_forward(const StepShape& shape, const std::byte* inputs);
  void enqueue_sampling(const StepShape& shape);
  // Captures graphs of the forward part of a decode-only step and, if this rank `draws` tokens, of the whole step. Such
  // a step must have run once before, and no step may be in flight.
  void capture(const StepShape& shape, bool draws);
  // Whether steps of this shape are launched as a graph.
  bool has_captured(const StepShape& shape) const { return graphs_of(shape) != nullptr; }
  // Page-locked memory for the inputs of a step that no event loop runs. Only the holder of turn() writes it.
  std::byte* pinned_inputs();
  // Waits for all work on the stream.
  void synchronize() const;

  RankMemory rank_memory() const { return {arena_.address(), state_.address()}; }
  // Lets the GPU of another rank, which can access this one's memory, reach the KV cache.
  void open_cache_to(const CudaExecutor& other) { cache_.open_to(other.device_); }
  // The address of the RankTable of an engine of several ranks.
  DevicePtr rank_table() const { return address_of(plan_.outputs.at("ranks")); }
  // Tells a rank where the other ranks have their memory, and how to report a rank that does not come. For ranks that
  // communicate by NCCL, all addresses but its own are 0.
  void set_ranks(const RankPeers& peers, const RankWatchdog& watchdog);
  // Drops the captured graphs and captures no more. Graphs in flight run to their end.
  void drop_graphs() { graphs_.clear(); }
  // Measures the time of each instruction of a step of this shape; repeats >= 1. No step may be in flight.
  std::vector<InstructionTime> time_step(const StepShape& shape, const std::byte* inputs, int repeats);
  // Finds the fastest algorithms for the matrix products of steps of more than `above` and at most `num_tokens` tokens.
  // The largest of these steps is timed, with the largest number of rows of logits that it may have (time_products.h).
  // No step may be in flight. Throws LimitError.
  std::vector<ProductTime> time_products(std::int64_t above, std::int64_t num_tokens, int num_candidates,
                                         const TimingEffort& effort);
  // Times the named programs, each of which must be able to run a step of this many tokens, in microseconds
  // (time_candidates.h). The step's inputs are zeros, and tensors that no program writes hold random values
  // (timed_values.h). No step may be in flight. Throws LimitError.
  std::vector<std::optional<double>> time_programs(const std::vector<std::string>& names, std::int64_t num_tokens,
                                                   const TimingEffort& effort);
  // The version of cuBLASLt. Throws DeviceError if the library is missing.
  std::int64_t cublaslt_version() const;
  Stream stream() const { return stream_.get(); }
  ProgramSet& programs() { return programs_; }
  // The extents of the last step.
  const Extents& last_step() const { return last_step_; }
  // The address of a tensor of the plan, given by its number.
  DevicePtr address_of(int tensor) const { return addresses_[static_cast<std::size_t>(tensor)]; }
  DevicePtr address_of(const OutputPlace& place) const {
    return arena_.address() + static_cast<DevicePtr>(place.offset);
  }
  DevicePtr logits() const { return logits_; }
  DevicePtr tokens() const { return tokens_; }
  DevicePtr logprobs() const { return logprobs_; }
  // The following are copied between ranks that communicate by NCCL.
  DevicePtr last_tokens() const { return address_of(plan_.outputs.at("last_tokens")); }
  DevicePtr sampling_slots() const { return sampling_slots_; }
  DevicePtr token_masks() const { return token_masks_; }
  std::int64_t max_masks() const { return plan_.symbols[Symbol::kNumSeqs]; }

  // Copies whole KV blocks of block_bytes() each: what all layers keep of their tokens. The host side is page-locked
  // memory.
  std::size_t block_bytes() const;
  void copy_block(std::int32_t src, std::int32_t dst);
  void save_block(std::int32_t block, std::byte* out);
  void load_block(std::int32_t block, const std::byte* data);

 private:
  // num_blocks_ blocks and the spare ones, of block_bytes each: of all layers, or of features.
  struct BlockArray {
    DevicePtr data;
    std::size_t block_bytes;

    DevicePtr block(std::int64_t index) const { return data + static_cast<DevicePtr>(index) * block_bytes; }
  };
  // The graphs of decode steps of one size.
  struct DecodeGraphs {
    OwnedGraphExec whole, forward;
  };

  // Captures graphs of the decode steps of batches up to `max_batch_size`.
  std::unique_ptr<StepExecutor> make_decoder_steps(std::int64_t num_host_blocks, int max_batch_size) override;
  // If the encoder takes long texts, also reserves memory for steps beside theirs.
  std::unique_ptr<StepExecutor> make_encoder_steps() override;
  const Program& program_of(const StepShape& shape) const;
  const DecodeGraphs* graphs_of(const StepShape& shape) const;  // null if none were captured
  // The extents of a step to be timed.
  Extents timed_extents(std::int64_t num_tokens) const;
  // Fills the arena with random values and the inputs with 0, for timing. Throws LimitError.
  void make_up_step(std::int64_t num_tokens, const TimingEffort& effort);
  DevicePtr borrowed_features(const CudaExecutor* from) const;
  void enqueue(const StepShape& shape, const std::byte* inputs, ProgramPart part);
  bool map_unused(int slab);
  void place_tensors();
  void place_inputs(const InputLayout& layout);

  std::mutex turn_;
  const Engine& engine_;
  const Plan& plan_;
  const std::int64_t num_blocks_;
  const std::int64_t token_row_bytes_;
  const std::vector<std::string> library_directories_;
  Device device_;
  OwnedStream stream_;
  OwnedStream reading_;  // the stream of expert_counts()
  ProgramSet programs_;
  Weights weights_;
  AdapterMemory adapters_;
  TimedValues timed_values_;
  DeviceBuffer arena_, state_, inputs_;
  MappedMemory cache_;
  std::set<int> lent_slabs_;  // slabs of the cache that adapters may have
  PinnedBuffer pinned_;       // inputs of steps that no event loop runs; allocated at the first of them
  DevicePtr features_;        // features of tokens, in this KV cache or that of another engine; 0 if there are none
  bool knows_ranks_;          // whether set_ranks() was called; always true for an engine of one rank
  std::vector<BlockArray> blocks_;  // without borrowed features
  Addresses addresses_;
  Extents last_step_{};
  DevicePtr logits_ = 0, tokens_ = 0, logprobs_ = 0, sampling_slots_ = 0, token_masks_ = 0;  // outputs of the plan
  std::vector<std::pair<std::size_t, StepInputIndex>> input_tensors_;  // (tensor of the plan, step input)
  std::map<std::pair<std::int64_t, bool>, DecodeGraphs> graphs_;       // keys: (padded rows, whether with adapters)
  std::unique_ptr<SideStream> side_;                                   // null: no step runs beside another
};

}  // namespace tl::cuda
