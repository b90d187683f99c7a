#include "host/host_step_executor.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <utility>

#include "adapters/adapter.h"
#include "kv_cache_size.h"

namespace tl {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

HostStepExecutor::HostStepExecutor(LogitsExecutor& executor, std::int64_t num_host_blocks)
    : executor_(executor),
      rows_(executor.num_slots(), static_cast<int>(executor.vocab_size())),
      geometry_(cache_geometry(executor.engine().manifest())),
      blocks_(executor.num_slots(), geometry_.num_groups()),
      // At least one byte is mapped, because an empty mapping is an error.
      host_cache_(std::max<std::size_t>(static_cast<std::size_t>(num_host_blocks) * executor.block_bytes(), 1),
                  AnonymousMemory::Pages::kDefault, "swapped KV cache", "lower host_cache_size"),
      workspaces_(static_cast<std::size_t>(executor.num_threads())),
      worker_([this] { work(); }) {}

std::unique_ptr<StepExecutor> LogitsExecutor::make_step_executor(std::int64_t num_host_blocks, int) {
  return std::make_unique<HostStepExecutor>(*this, num_host_blocks);
}

std::unique_ptr<float[]> LogitsExecutor::step(const StepRequest& request) {
  std::unique_ptr<float[]> copy;
  step(request, [&](std::span<const float> logits, ThreadPool&) {
    copy = std::make_unique_for_overwrite<float[]>(logits.size());
    std::ranges::copy(logits, copy.get());
  });
  return copy;
}

HostStepExecutor::~HostStepExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  launched_.notify_one();
  worker_.join();
}

// No step in flight uses the slot, so the worker does not look at it before the next launch.
void HostStepExecutor::set_slot(int slot, std::shared_ptr<const SlotParams> params,
                                std::span<const std::int32_t> tokens, int num_prompt) {
  rows_.set_slot(slot, std::move(params), tokens, num_prompt);
  blocks_.clear(slot);
}

void HostStepExecutor::launch(const StepBatch& batch) {
  {
    const std::lock_guard lock(mutex_);
    to_run_.push_back(&batch);
  }
  launched_.notify_one();
}

void HostStepExecutor::wait(StepResult& result) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return !to_collect_.empty(); });
  Finished step = std::move(to_collect_.front());
  to_collect_.pop_front();
  if (to_run_.empty() && to_collect_.empty()) broken_ = false;
  if (step.error) std::rethrow_exception(step.error);
  result = std::move(step.result);
}

void HostStepExecutor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    launched_.wait(lock, [&] { return stopping_ || !to_run_.empty(); });
    if (stopping_) return;
    const StepBatch& batch = *to_run_.front();
    const bool broken = broken_;
    lock.unlock();
    Finished step;
    try {
      if (broken) throw StepError("the step before this one failed");
      run(batch, step.result);
    } catch (...) {  // wait() rethrows the error for the event loop
      step.error = std::current_exception();
    }
    lock.lock();
    to_run_.pop_front();
    broken_ = step.error != nullptr;
    to_collect_.push_back(std::move(step));
    finished_.notify_one();
  }
}

void HostStepExecutor::run(const StepBatch& batch, StepResult& result) {
  const auto start = std::chrono::steady_clock::now();
  copy_blocks(batch.copies, executor_, [this](std::int32_t index) { return host_block(index); });
  if (!batch.copies.empty()) result.copy_seconds = seconds_since(start);
  blocks_.update(batch.table_updates);
  result.rows.resize(batch.rows.size());
  if (batch.rows.empty()) return;
  const auto compute_start = std::chrono::steady_clock::now();
  pack(batch);
  const StepRequest request{.token_ids = token_ids_,
                            .seq_lens = seq_lens_,
                            .past_lens = past_lens_,
                            .block_tables = block_tables_,
                            .blocks_per_row = blocks_per_row_,
                            .logits_indices = logits_indices_,
                            .adapters = adapters_,
                            .received = {}};
  executor_.step(request,
                 [&](std::span<const float> logits, ThreadPool& pool) { sample(batch, logits, pool, result); });
  result.compute_seconds = seconds_since(compute_start);
}

std::span<std::byte> HostStepExecutor::host_block(std::int32_t index) const {
  return {host_cache_.data() + static_cast<std::size_t>(index) * executor_.block_bytes(), executor_.block_bytes()};
}

void HostStepExecutor::pack(const StepBatch& batch) {
  token_ids_ = batch.token_ids;
  seq_lens_.clear();
  past_lens_.clear();
  logits_indices_.clear();
  row_logits_.clear();
  adapters_.clear();
  for (const StepRow& row : batch.rows) pack_row(batch, row);
  pack_tables(batch);
}

void HostStepExecutor::pack_row(const StepBatch& batch, const StepRow& row) {
  seq_lens_.push_back(row.num_tokens);
  past_lens_.push_back(row.past_len);
  if (batch.token_ids[static_cast<std::size_t>(row.first_token)] == kLastSampled) {
    token_ids_[static_cast<std::size_t>(row.first_token)] = rows_.last_token(row.slot);
  }
  RowLogits at = rows_.logits_of(row);
  at.first = std::ssize(logits_indices_);
  for (int i = 0; i < at.num_rows; ++i) {
    logits_indices_.push_back(row.first_token + at.token_of(i, row));
  }
  row_logits_.push_back(at);
  if (const Adapter* adapter = rows_.params(row.request_slot).adapter.get()) {
    adapters_.resize(batch.token_ids.size());
    std::fill_n(adapters_.begin() + row.first_token, row.num_tokens, adapter->parts());
  }
}

void HostStepExecutor::pack_tables(const StepBatch& batch) {
  const auto num_blocks = [&](const StepRow& row) { return geometry_.num_blocks_for(row.past_len + row.num_tokens); };
  const int num_groups = geometry_.num_groups();
  blocks_per_row_ = std::ranges::max(batch.rows | std::views::transform(num_blocks));
  block_tables_.assign(batch.rows.size() * static_cast<std::size_t>(num_groups * blocks_per_row_), 0);
  auto out = block_tables_.begin();
  for (const StepRow& row : batch.rows) {
    for (int group = 0; group < num_groups; ++group, out += blocks_per_row_) {
      std::copy_n(blocks_.blocks(row.slot, group).begin(), num_blocks(row), out);
    }
  }
}

void HostStepExecutor::sample(const StepBatch& batch, std::span<const float> logits, ThreadPool& pool,
                              StepResult& result) {
  pool.parallel_for(std::ssize(batch.rows), [&](std::int64_t task, int thread) {
    const auto i = static_cast<std::size_t>(task);
    rows_.finish_row(batch, row_logits_, i, logits, workspaces_[static_cast<std::size_t>(thread)], result.rows[i]);
  });
}

}  // namespace tl
