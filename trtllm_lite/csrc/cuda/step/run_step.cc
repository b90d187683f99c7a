#include "cuda/step/run_step.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "caches/kv_cache_size.h"
#include "cuda/step/cuda_step_executor.h"
#include "cuda/step/input_layout.h"
#include "errors.h"

namespace tl::cuda {
namespace {

StepLimits step_limits(const CudaExecutor& executor) {
  const Manifest& manifest = executor.engine().manifest();
  const Limits& most = manifest.limits;
  Extents bounds = executor.plan().symbols;
  bounds[Symbol::kNumTokens] = most.max_num_tokens;
  bounds[Symbol::kNumSeqs] = most.max_batch_size;
  bounds[Symbol::kNumBlocks] = executor.num_blocks();
  return {
      .bounds = bounds,
      .values = {{kTokenIds, {.value = manifest.model.vocab_size}}, {kLogitsIndices, {.symbol = Symbol::kNumTokens}}},
      .max_seq_len = most.max_seq_len,
      .geometry = cache_geometry(manifest)};
}

// A request with checked inputs, as a batch of the event loop. Sequence i has slot i, and its new tokens count as a
// prompt whose logits are wanted.
class HandmadeStep {
 public:
  HandmadeStep(CudaExecutor& executor, const StepRequest& request)
      : vocab_size_(static_cast<std::size_t>(executor.engine().manifest().model.vocab_size)),
        geometry_(cache_geometry(executor.engine().manifest())),
        num_seqs_(request.seq_lens.size()),
        blocks_per_row_(static_cast<std::size_t>(request.blocks_per_row)),
        inputs_(step_limits(executor)),
        device_(std::array{&executor}, 0) {
    inputs_.assign(request);
    const std::int32_t* wanted = inputs_.data(kLogitsIndices);
    wanted_.assign(wanted, wanted + request.logits_indices.size());
    batch_.token_ids.assign(inputs_.data(kTokenIds), inputs_.data(kTokenIds) + request.token_ids.size());
    for (std::size_t seq = 0; seq < num_seqs_; ++seq) add_row(seq);
    check_num_logits(executor.max_logits());
  }

  std::unique_ptr<float[]> run() {
    StepResult result;
    device_.launch(batch_);
    device_.wait(result);
    auto logits = std::make_unique_for_overwrite<float[]>(wanted_.size() * vocab_size_);
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      const std::size_t seq = seq_of(wanted_[i]);
      const auto& outputs = static_cast<const RequestOutputs&>(*result.rows[seq].outputs);
      const StepRow& row = batch_.rows[seq];
      const auto at = static_cast<std::size_t>(row.past_len + wanted_[i] - row.first_token - outputs.first_position);
      std::copy_n(outputs.context_logits.values.get() + at * vocab_size_, vocab_size_, logits.get() + i * vocab_size_);
    }
    return logits;
  }

 private:
  void add_row(std::size_t seq) {
    const std::int32_t* starts = inputs_.data(kCuSeqlens) + seq;
    const std::int32_t past_len = inputs_.data(kPastLens)[seq], num_tokens = starts[1] - starts[0];
    const auto slot = static_cast<std::int32_t>(seq);
    const auto params = std::make_shared<RequestParams>();
    params->context_logits = true;
    const std::vector<std::int32_t> prompt(static_cast<std::size_t>(past_len + num_tokens));
    device_.set_slot(slot, params, prompt, past_len + num_tokens);
    for (std::int32_t group = 0; group < geometry_.num_groups(); ++group) {
      const std::size_t table =
          seq * static_cast<std::size_t>(geometry_.num_groups()) + static_cast<std::size_t>(group);
      const std::int32_t* blocks = inputs_.data(kBlockTables) + table * blocks_per_row_;
      const std::int32_t num_entries = geometry_.kind(group).num_entries(past_len + num_tokens);
      for (std::int32_t i = 0; i < num_entries; ++i) batch_.table_updates.push_back({slot, group, i, blocks[i]});
    }
    batch_.rows.push_back({.request = {},
                           .slot = slot,
                           .request_slot = slot,
                           .first_token = starts[0],
                           .num_tokens = num_tokens,
                           .past_len = past_len,
                           .num_generated = 0,
                           .outputs_from = past_len + first_wanted(starts[0], starts[1]) - starts[0],
                           .sample = false});
  }

  // The first row from `begin` on with wanted logits, or `end`.
  std::int32_t first_wanted(std::int32_t begin, std::int32_t end) const {
    for (const std::int32_t row : wanted_) end = row >= begin ? std::min(end, row) : end;
    return end;
  }

  std::size_t seq_of(std::int32_t token) const {
    const auto next = std::ranges::upper_bound(batch_.rows, token, {}, &StepRow::first_token);
    return static_cast<std::size_t>(next - batch_.rows.begin()) - 1;
  }

  void check_num_logits(std::int64_t most) const {
    std::int64_t found = 0;
    for (const StepRow& row : batch_.rows) found += row.past_len + row.num_tokens - row.outputs_from;
    if (found <= most) return;
    throw LimitError("step: rows of logits up to the ends of their sequences: expected at most " +
                     std::to_string(most) + ", found " + std::to_string(found) +
                     "; ask for the last row of each sequence, or build the engine with --gather_context_logits");
  }

  const std::size_t vocab_size_;
  const KvGeometry geometry_;
  const std::size_t num_seqs_, blocks_per_row_;
  StepInputs inputs_;
  CudaStepExecutor device_;
  std::vector<std::int32_t> wanted_;
  StepBatch batch_;
};

// Packs the inputs of a step that draws no tokens.
void pack(CudaExecutor& executor, StepInputs& checked, const StepRequest& request, const InputLayout& layout,
          const Extents& step, std::byte* out) {
  const auto at = [&](StepInputIndex input) { return reinterpret_cast<std::int32_t*>(out + layout.offsets[input]); };
  constexpr std::int32_t kNone = -1;
  for (const StepInputIndex input : {kTokenSlots, kSampleSlots, kSampleCounter, kSampleDrafts, kSampleMasks}) {
    std::fill_n(at(input), step[kStepInputs[input].shape[0]], kNone);
  }
  for (const StepInputIndex input : kRequestInputs) {
    const bool is_table = input == kBlockTables;
    const std::int64_t rows = is_table ? step[Symbol::kNumTables] : 1;
    const std::int64_t width = is_table ? request.blocks_per_row : step[kStepInputs[input].shape[0]];
    for (std::int64_t row = 0; row < rows; ++row) {
      std::copy_n(checked.data(input) + row * width, width, at(input) + row * executor.table_columns());
    }
  }
}

}  // namespace

void compute(CudaExecutor& executor, const StepRequest& request) {
  const std::lock_guard lock(executor.turn());
  executor.device().make_current();
  StepInputs checked(step_limits(executor));
  checked.assign(request);
  const StepShape shape{.num_tokens = std::ssize(request.token_ids),
                        .num_seqs = std::ssize(request.seq_lens),
                        .num_logits = std::ssize(request.logits_indices)};
  const Extents step = executor.extents(shape);
  const InputLayout layout = executor.input_layout(step);
  std::byte* inputs = executor.pinned_inputs();
  pack(executor, checked, request, layout, step, inputs);
  executor.enqueue_step(shape, inputs);
  driver().check(driver().stream_synchronize(executor.stream()), "running a step");
}

std::unique_ptr<float[]> run_step(CudaExecutor& executor, const StepRequest& request) {
  executor.check_makes_logits();
  const std::lock_guard lock(executor.turn());
  return HandmadeStep(executor, request).run();
}

std::unique_ptr<std::uint8_t[]> read_block(CudaExecutor& executor, std::int64_t block) {
  if (block < 0 || block >= executor.num_blocks()) {
    throw LimitError("block: expected 0 to " + std::to_string(executor.num_blocks() - 1) + ", found " +
                     std::to_string(block) + "; pass a block number of this cache");
  }
  const std::lock_guard lock(executor.turn());
  executor.device().make_current();
  const std::size_t num_bytes = executor.block_bytes();
  const PinnedBuffer buffer(num_bytes, "KV block", "free host memory");
  executor.save_block(static_cast<std::int32_t>(block), buffer.data());
  driver().check(driver().stream_synchronize(executor.stream()), "reading a KV block");
  auto bytes = std::make_unique_for_overwrite<std::uint8_t[]>(num_bytes);
  std::memcpy(bytes.get(), buffer.data(), num_bytes);
  return bytes;
}

}  // namespace tl::cuda
