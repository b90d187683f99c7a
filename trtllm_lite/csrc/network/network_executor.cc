#include "network/network_executor.h"

#include <algorithm>
#include <cstring>

#include "caches/kv_cache_size.h"
#include "errors.h"
#include "host/cpu_count.h"

namespace tl {
namespace {

// A generation step runs one network for all sequences, which was compiled for max_batch_size of them.
std::int64_t check_num_blocks(const Engine& engine, std::int64_t num_blocks) {
  const std::int64_t found = resolve_num_blocks(engine, num_blocks);
  const std::int64_t most = engine.manifest().limits.max_batch_size;
  if (found <= most) return found;
  throw LimitError("num_blocks: expected a block for each sequence of a batch, so " + std::to_string(most) +
                   " at most, found " + std::to_string(found) + "; reserve fewer");
}

}  // namespace

NetworkExecutor::NetworkExecutor(const Engine& engine, std::int64_t num_blocks, std::unique_ptr<Network> network)
    : engine_(engine),
      num_blocks_(check_num_blocks(engine, num_blocks)),
      network_(std::move(network)),
      pool_(new ThreadPool(std::min(resolve_num_threads(0), kMaxSamplingThreads))),
      inputs_(step_limits(engine, num_blocks_)),
      num_logits_(static_cast<std::size_t>(engine.plan_for(TargetKind::kTensorrt).symbols[Symbol::kNumLogits])),
      logits_(std::make_unique<float[]>(num_logits_ * static_cast<std::size_t>(vocab_size()))),
      lengths_(static_cast<std::size_t>(num_blocks_), 0) {}

void NetworkExecutor::compute(const StepRequest& request, const LogitsUse& use) {
  const std::lock_guard lock(mutex_);
  extents_ = inputs_.assign(request);
  split(extents_[Symbol::kNumSeqs], extents_[Symbol::kNumLogits]);
  for (const Part& part : parts_) {
    if (part.tokens.size() > 1) run_context(part);
  }
  run_generation();
  use({logits_.get(), request.logits_indices.size() * static_cast<std::size_t>(vocab_size())}, *pool_);
}

void NetworkExecutor::split(std::int64_t num_seqs, std::int64_t num_logits) {
  const std::span starts(inputs_.data(kCuSeqlens), static_cast<std::size_t>(num_seqs) + 1);
  const std::int32_t* const tokens = inputs_.data(kTokenIds);
  parts_.resize(static_cast<std::size_t>(num_seqs));
  for (std::size_t seq = 0; seq < parts_.size(); ++seq) {
    Part& part = parts_[seq];
    // A table has one entry, because a block has room for the longest sequence.
    part.row = inputs_.data(kBlockTables)[static_cast<std::int64_t>(seq) * extents_[Symbol::kMaxBlocksPerSeq]];
    part.past_len = inputs_.data(kPastLens)[seq];
    part.tokens = {tokens + starts[seq], tokens + starts[seq + 1]};
    part.positions.clear();
    part.outputs.clear();
  }
  for (std::int32_t output = 0; output < num_logits; ++output) {
    const std::int32_t token = inputs_.data(kLogitsIndices)[output];
    const auto seq = static_cast<std::size_t>(std::ranges::upper_bound(starts, token) - starts.begin()) - 1;
    parts_[seq].positions.push_back(token - starts[seq]);
    parts_[seq].outputs.push_back(output);
  }
}

void NetworkExecutor::run_context(const Part& part) {
  static constexpr std::int32_t kFirst[] = {0};
  const auto positions = part.positions.empty() ? std::span<const std::int32_t>(kFirst) : std::span(part.positions);
  network_->step({.generation = false,
                  .first_row = part.row,
                  .past_lens = {&part.past_len, 1},
                  .token_ids = part.tokens,
                  .logits_indices = positions,
                  .outputs = part.outputs},
                 logits());
  lengths_[static_cast<std::size_t>(part.row)] = part.past_len + static_cast<std::int32_t>(part.tokens.size());
}

// The network computes a row for every sequence from the first to the last that generates. Those between that do not
// generate are idle: see idle_position.
void NetworkExecutor::run_generation() {
  std::int64_t first = num_blocks_, end = 0;
  for (const Part& part : parts_) {
    if (part.tokens.size() > 1) continue;
    first = std::min(first, part.row);
    end = std::max(end, part.row + 1);
  }
  if (first >= end) return;
  past_lens_.clear();
  for (std::int64_t row = first; row < end; ++row) past_lens_.push_back(idle_position(row));
  token_ids_.assign(past_lens_.size(), 0);
  logits_indices_.clear();
  outputs_.clear();
  for (const Part& part : parts_) {
    if (part.tokens.size() > 1) continue;
    const auto at = static_cast<std::size_t>(part.row - first);
    past_lens_[at] = part.past_len;
    token_ids_[at] = part.tokens.front();
    logits_indices_.insert(logits_indices_.end(), part.outputs.size(), static_cast<std::int32_t>(at));
    outputs_.insert(outputs_.end(), part.outputs.begin(), part.outputs.end());
    lengths_[static_cast<std::size_t>(part.row)] = part.past_len + 1;
  }
  if (outputs_.empty()) logits_indices_.push_back(0);
  network_->step({.generation = true,
                  .first_row = first,
                  .past_lens = past_lens_,
                  .token_ids = token_ids_,
                  .logits_indices = logits_indices_,
                  .outputs = outputs_},
                 logits());
}

// An idle row gets a token after all that it holds. If a sequence is there, its next step overwrites the token; a
// sequence of full length has no next step.
std::int32_t NetworkExecutor::idle_position(std::int64_t row) const {
  const auto last = static_cast<std::int32_t>(engine_.manifest().limits.max_seq_len) - 1;
  return std::min(lengths_[static_cast<std::size_t>(row)], last);
}

StepOutput NetworkExecutor::output(const std::string& name, const RowSlice& slice) {
  const std::lock_guard lock(mutex_);
  const OutputPlace place = find_output(engine_.plan(), extents_, name, slice);
  StepOutput result{std::make_unique_for_overwrite<std::uint8_t[]>(place.bytes()), place.rows, place.row_bytes};
  std::memcpy(result.bytes.get(), reinterpret_cast<const std::byte*>(logits_.get()) + place.offset, place.bytes());
  return result;
}

std::size_t NetworkExecutor::block_bytes() const {
  return static_cast<std::size_t>(engine_.manifest().kv_cache.bytes_per_block);
}

void NetworkExecutor::copy_block(std::int64_t src, std::int64_t dst) {
  const std::lock_guard lock(mutex_);
  network_->copy_row(src, dst);
  lengths_[static_cast<std::size_t>(dst)] = lengths_[static_cast<std::size_t>(src)];
}

void NetworkExecutor::save_block(std::int64_t block, std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  network_->save_row(block, out);
}

// The sequence's length is known only at its next step; until then nothing in the row may be overwritten.
void NetworkExecutor::load_block(std::int64_t block, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  network_->load_row(block, data);
  lengths_[static_cast<std::size_t>(block)] = static_cast<std::int32_t>(engine_.manifest().limits.max_seq_len);
}

MemoryUse NetworkExecutor::memory() const {
  MemoryUse use = network_->memory();
  use.workspace += num_logits_ * static_cast<std::size_t>(vocab_size()) * sizeof(float);
  return use;
}

}  // namespace tl
