#include "cpu/cpu_pipeline.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "errors.h"

namespace tl {

CpuPipeline::CpuPipeline(std::vector<std::unique_ptr<LogitsExecutor>> stages)
    : stages_(std::move(stages)), pipe_(new Pipe) {
  for (std::size_t stage = 0; stage + 1 < stages_.size(); ++stage) {
    pipe_->threads.emplace_back([this, stage] { work(stage); });
  }
}

CpuPipeline::Pipe::~Pipe() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void CpuPipeline::begin(const StepRequest& request) {
  pipe_.get_deleter().home.check();
  {
    const std::lock_guard lock(pipe_->mutex);
    pipe_->steps.emplace_back(request);
  }
  pipe_->changed.notify_all();
}

// The oldest step that waits for `stage`; null if there is none.
CpuPipeline::Step* CpuPipeline::at(std::size_t stage) {
  const auto found = std::ranges::find(pipe_->steps, stage, &Step::num_passed);
  return found == pipe_->steps.end() ? nullptr : &*found;
}

void CpuPipeline::work(std::size_t stage) {
  std::unique_lock lock(pipe_->mutex);
  while (true) {
    Step* step = nullptr;
    pipe_->changed.wait(lock, [&] { return pipe_->stopping || (step = at(stage)) != nullptr; });
    if (pipe_->stopping) return;
    lock.unlock();
    pass(*step, stage);
    lock.lock();
    ++step->num_passed;
    pipe_->changed.notify_all();
  }
}

void CpuPipeline::pass(Step& step, std::size_t stage) {
  if (step.error) return;
  try {
    std::vector<float> made;
    run_stage(step, stage, [&](std::span<const float> rows, ThreadPool&) { made.assign(rows.begin(), rows.end()); });
    step.made = std::move(made);
  } catch (...) {  // finish() rethrows it
    step.error = std::current_exception();
  }
}

void CpuPipeline::run_stage(Step& step, std::size_t stage, const LogitsUse& use) {
  StepRequest request = step.request;
  request.received = std::as_bytes(std::span(step.made));
  try {
    stages_[stage]->step(request, use);
  } catch (const DeviceError& error) {
    throw DeviceError("stage " + std::to_string(stage) + " of " + std::to_string(stages_.size()) + ": " + error.what());
  }
}

void CpuPipeline::finish(const LogitsUse& use) {
  pipe_.get_deleter().home.check();
  const std::size_t last = stages_.size() - 1;
  std::unique_lock lock(pipe_->mutex);
  pipe_->changed.wait(lock, [&] { return !pipe_->steps.empty() && pipe_->steps.front().num_passed == last; });
  Step& step = pipe_->steps.front();  // others may be added after it meanwhile
  lock.unlock();
  std::exception_ptr error = step.error;
  try {
    if (!error) run_stage(step, last, use);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  pipe_->steps.pop_front();
  lock.unlock();
  pipe_->changed.notify_all();
  if (error) std::rethrow_exception(error);
}

std::size_t CpuPipeline::block_bytes() const {
  std::size_t bytes = 0;
  for (const auto& stage : stages_) bytes += stage->block_bytes();
  return bytes;
}

std::unique_lock<std::mutex> CpuPipeline::lock_idle() {
  std::unique_lock lock(pipe_->mutex);
  pipe_->changed.wait(lock, [&] { return pipe_->steps.empty(); });
  return lock;
}

void CpuPipeline::copy_block(std::int64_t src, std::int64_t dst) {
  const std::unique_lock lock = lock_idle();
  for (const auto& stage : stages_) stage->copy_block(src, dst);
}

void CpuPipeline::save_block(std::int64_t block, std::span<std::byte> out) {
  const std::unique_lock lock = lock_idle();
  for (const auto& stage : stages_) {
    stage->save_block(block, out.first(stage->block_bytes()));
    out = out.subspan(stage->block_bytes());
  }
}

void CpuPipeline::load_block(std::int64_t block, std::span<const std::byte> data) {
  const std::unique_lock lock = lock_idle();
  for (const auto& stage : stages_) {
    stage->load_block(block, data.first(stage->block_bytes()));
    data = data.subspan(stage->block_bytes());
  }
}

MemoryUse CpuPipeline::memory() const {
  MemoryUse all;
  for (const auto& stage : stages_) {
    const MemoryUse own = stage->memory();
    all.weights += own.weights;
    all.kv_cache += own.kv_cache;
    all.workspace += own.workspace;
  }
  return all;
}

std::vector<ExpertCounts> CpuPipeline::expert_counts() {
  std::vector<ExpertCounts> all;
  for (const auto& stage : stages_) std::ranges::move(stage->expert_counts(), std::back_inserter(all));
  return all;
}

StepOutput CpuPipeline::output(const std::string& name, const RowSlice& slice) {
  return stages_.back()->output(name, slice);
}

}  // namespace tl
