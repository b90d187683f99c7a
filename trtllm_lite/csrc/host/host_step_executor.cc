#include "host/host_step_executor.h"

#include <algorithm>
#include <utility>

#include "caches/kv_cache_size.h"

namespace tl {
namespace {

constexpr const char* kStepBeforeFailed = "the step before this one failed";

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

HostStepExecutor::HostStepExecutor(LogitsExecutor& executor, std::int64_t num_host_blocks)
    : executor_(executor),
      rows_(executor.num_slots(), static_cast<int>(executor.vocab_size())),
      masks_(rows_, !cache_geometry(executor.engine().manifest()).has_states()),
      geometry_(cache_geometry(executor.engine().manifest())),
      blocks_(executor.num_slots(), geometry_.num_groups()),
      // At least one byte, because an empty mapping is an error.
      host_cache_(std::max<std::size_t>(static_cast<std::size_t>(num_host_blocks) * executor.block_bytes(), 1),
                  AnonymousMemory::Pages::kDefault, "KV cache on the host", "lower host_cache_size"),
      packed_(static_cast<std::size_t>(executor.num_stages())),
      workspaces_(static_cast<std::size_t>(executor.num_threads())),
      worker_([this] { work(); }) {}

std::unique_ptr<StepExecutor> LogitsExecutor::make_decoder_steps(std::int64_t num_host_blocks, int) {
  return std::make_unique<HostStepExecutor>(*this, num_host_blocks);
}

void LogitsExecutor::step(const StepRequest& request, const LogitsUse& use) {
  home_.check();
  const std::lock_guard lock(turn_);
  begin(request);
  finish(use);
}

std::unique_ptr<float[]> LogitsExecutor::step(const StepRequest& request) {
  check_makes_logits();
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
  changed_.notify_one();
  worker_.join();
}

// No step in flight uses the slot, so no thread reads it before the next launch.
void HostStepExecutor::set_slot(int slot, std::shared_ptr<const SlotParams> params,
                                std::span<const std::int32_t> tokens, int num_prompt) {
  rows_.set_slot(slot, std::move(params), tokens, num_prompt);
  blocks_.clear(slot);
}

void HostStepExecutor::launch(const StepBatch& batch) {
  {
    Lock lock(mutex_);
    to_begin_.push_back(&batch);
    if (is_finishing_) begin_steps(lock);
  }
  changed_.notify_one();
}

void HostStepExecutor::wait(StepResult& result) {
  Lock lock(mutex_);
  finished_.wait(lock, [&] { return !to_collect_.empty(); });
  Step step = std::move(to_collect_.front());
  to_collect_.pop_front();
  if (to_begin_.empty() && begun_.empty() && !is_beginning_ && to_collect_.empty()) broken_ = false;
  if (step.error) std::rethrow_exception(step.error);
  result = std::move(step.result);
}

void HostStepExecutor::work() {
  Lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !begun_.empty() || (!to_begin_.empty() && !is_beginning_); });
    if (stopping_) return;
    begin_steps(lock);
    if (!begun_.empty()) finish_oldest(lock);
  }
}

// Begins launched steps as long as the executor has room, unless the other thread is doing so. The tokens that a begun
// step continues are known, because its requests are in none of the num_stages() - 1 steps before it. Blocks are copied
// while no step is in progress.
void HostStepExecutor::begin_steps(Lock& lock) {
  if (is_beginning_) return;
  is_beginning_ = true;
  while (!to_begin_.empty() && begun_.size() < (to_begin_.front()->copies.empty() ? packed_.size() : 1)) {
    Step step{.batch = to_begin_.front(), .packed = &packed_[num_begun_++ % packed_.size()]};
    to_begin_.pop_front();
    const bool is_lost = broken_ || (!begun_.empty() && begun_.back().error);
    lock.unlock();
    try {
      if (is_lost) throw StepError(kStepBeforeFailed);
      begin(step);
    } catch (...) {  // wait() rethrows the error for the event loop
      step.error = std::current_exception();
    }
    lock.lock();
    begun_.push_back(std::move(step));
  }
  is_beginning_ = false;
}

void HostStepExecutor::finish_oldest(Lock& lock) {
  Step& step = begun_.front();  // others may be added after it meanwhile
  is_finishing_ = true;
  lock.unlock();
  try {
    if (step.computes) finish(step);
  } catch (...) {
    step.error = std::current_exception();
  }
  lock.lock();
  is_finishing_ = false;
  if (broken_ && !step.error) step.error = std::make_exception_ptr(StepError(kStepBeforeFailed));
  broken_ = step.error != nullptr;
  to_collect_.push_back(std::move(step));
  begun_.pop_front();
  finished_.notify_one();
}

void HostStepExecutor::begin(Step& step) {
  const StepBatch& batch = *step.batch;
  step.start = Clock::now();
  copy_blocks(batch.copies, executor_, [this](std::int32_t index) { return host_block(index); });
  if (!batch.copies.empty()) step.result.copy_seconds = seconds_since(step.start);
  blocks_.update(batch.table_updates);
  step.result.rows.resize(batch.rows.size());
  if (batch.rows.empty()) return;
  step.start = Clock::now();
  step.packed->pack(batch, rows_, blocks_, geometry_);
  executor_.begin(step.packed->request());
  step.computes = true;
}

void HostStepExecutor::finish(Step& step) {
  masks_.start(*step.batch);
  executor_.finish([&](std::span<const float> logits, ThreadPool& pool) { finish_rows(step, logits, pool); });
  step.result.woken_slots = masks_.take_woken();
  step.result.compute_seconds = seconds_since(step.start) - std::chrono::duration<double>(step.waited).count();
}

// Rows without masks come first, which gives the masks a little more time.
void HostStepExecutor::finish_rows(Step& step, std::span<const float> logits, ThreadPool& pool) {
  const std::span<const std::size_t> guided = masks_.rows();
  const auto finish_row = [&](std::size_t row, const RowMasks* masks, int thread) {
    rows_.finish_row(*step.batch, step.packed->row_logits(), row, logits, masks,
                     workspaces_[static_cast<std::size_t>(thread)], step.result.rows[row]);
  };
  pool.parallel_for(std::ssize(step.batch->rows), [&](std::int64_t task, int thread) {
    const auto row = static_cast<std::size_t>(task);
    if (!std::ranges::binary_search(guided, row)) finish_row(row, nullptr, thread);
  });
  step.waited = masks_.wait(step.batch->rows.size());
  pool.parallel_for(std::ssize(guided), [&](std::int64_t task, int thread) {
    const auto i = static_cast<std::size_t>(task);
    finish_row(guided[i], &masks_.masks()[i], thread);
  });
}

std::span<std::byte> HostStepExecutor::host_block(std::int32_t index) const {
  return {host_cache_.data() + static_cast<std::size_t>(index) * executor_.block_bytes(), executor_.block_bytes()};
}

}  // namespace tl
