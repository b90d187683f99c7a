#include "cuda/host_sampling.h"

#include <algorithm>
#include <utility>

#include "cpu_count.h"

namespace tl::cuda {
namespace {

constexpr int kMaxThreads = 8;

bool needs_host(const RequestParams& params) {
  const SamplingParams& sampling = params.sampling;
  const bool changes_logits = sampling.repetition_penalty != 1.0f || sampling.presence_penalty != 0.0f ||
                              sampling.frequency_penalty != 0.0f || sampling.min_tokens > 0 ||
                              !sampling.bad_words.empty() || !sampling.logit_bias.empty() ||
                              sampling.allowed_token_ids.has_value();
  const bool reports =
      sampling.logprobs || sampling.prompt_logprobs || params.context_logits || params.generation_logits;
  return params.beams || changes_logits || reports;
}

}  // namespace

HostSampling::HostSampling(int num_slots, int vocab_size)
    : rows_(num_slots, vocab_size), on_host_(static_cast<std::size_t>(num_slots)) {}

void HostSampling::set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                            int num_prompt) {
  rows_.set_slot(slot, std::move(params), tokens, num_prompt);
  on_host_[static_cast<std::size_t>(slot)] = needs_host(rows_.params(slot)) ? 1 : 0;
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
