#include "cuda/host_sampling.h"

#include <algorithm>
#include <utility>

#include "cpu_count.h"

namespace tl::cuda {
namespace {

constexpr int kMaxThreads = 8;

bool wants_logits(const RequestParams& params) {
  return params.beams || params.sampling.prompt_logprobs || params.context_logits || params.generation_logits;
}

}  // namespace

HostSampling::HostSampling(const CudaExecutor& executor)
    : rows_(executor.num_slots(), static_cast<int>(executor.engine().manifest().model.vocab_size)),
      records_(executor),
      who_(static_cast<std::size_t>(executor.num_slots())) {}

void HostSampling::set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                            int num_prompt) {
  rows_.set_slot(slot, std::move(params), tokens, num_prompt);
  const RequestParams& own = rows_.params(slot);
  const bool on_device = !wants_logits(own) && records_.set(slot, own, *rows_.sequence(slot));
  const Who device = own.sampling.logprobs ? Who::kDeviceWithLogprobs : Who::kDevice;
  who_[static_cast<std::size_t>(slot)] = on_device ? device : Who::kHost;
}

void HostSampling::finish(const StepBatch& batch, std::span<const std::size_t> taken, std::span<const RowLogits> at,
                          std::span<const float> logits, std::span<RowResult> results) {
  if (taken.empty()) return;
  if (!pool_) {
    pool_ = std::make_unique<ThreadPool>(std::min(resolve_num_threads(0), kMaxThreads));
    workspaces_.resize(static_cast<std::size_t>(pool_->num_threads()));
  }
  pool_->parallel_for(std::ssize(taken), [&](std::int64_t task, int thread) {
    const std::size_t row = taken[static_cast<std::size_t>(task)];
    rows_.finish_row(batch, at, row, logits, workspaces_[static_cast<std::size_t>(thread)], results[row]);
  });
}

}  // namespace tl::cuda
