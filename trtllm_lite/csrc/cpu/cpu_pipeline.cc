#include "cpu/cpu_pipeline.h"

#include <utility>

namespace tl {

CpuPipeline::CpuPipeline(std::vector<std::unique_ptr<LogitsExecutor>> stages) : stages_(std::move(stages)) {}

void CpuPipeline::step(const StepRequest& request, const LogitsUse& use) {
  const std::lock_guard turn(turn_);
  std::vector<float> sent;
  const LogitsUse keep = [&](std::span<const float> made, ThreadPool&) { sent.assign(made.begin(), made.end()); };
  StepRequest next = request;
  for (const auto& stage : stages_) {
    std::vector<float> received = std::move(sent);
    next.received = std::as_bytes(std::span(received));
    stage->step(next, stage == stages_.back() ? use : keep);
  }
}

std::size_t CpuPipeline::block_bytes() const {
  std::size_t bytes = 0;
  for (const auto& stage : stages_) bytes += stage->block_bytes();
  return bytes;
}

void CpuPipeline::copy_block(std::int64_t src, std::int64_t dst) {
  for (const auto& stage : stages_) stage->copy_block(src, dst);
}

void CpuPipeline::save_block(std::int64_t block, std::span<std::byte> out) {
  for (const auto& stage : stages_) {
    stage->save_block(block, out.first(stage->block_bytes()));
    out = out.subspan(stage->block_bytes());
  }
}

void CpuPipeline::load_block(std::int64_t block, std::span<const std::byte> data) {
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

StepOutput CpuPipeline::output(const std::string& name, const RowSlice& slice) {
  return stages_.back()->output(name, slice);
}

}  // namespace tl
