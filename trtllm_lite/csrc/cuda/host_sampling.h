// Requests of a GPU executor, and the sampling of those that ask for more than the device's sampling kernel does.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "row_sampler.h"
#include "thread_pool.h"

namespace tl::cuda {

class HostSampling {
 public:
  HostSampling(int num_slots, int vocab_size);

  // As StepExecutor::set_slot.
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt);
  const RowSampler& rows() const { return rows_; }
  // Whether the row's logits come to the host; else the device draws its token.
  bool takes(const StepRow& row) const { return on_host_[static_cast<std::size_t>(row.request_slot)] != 0; }

  // Fills in the results of the rows `taken`, on several threads; `at` has their places in `logits`.
  void finish(const StepBatch& batch, std::span<const std::size_t> taken, std::span<const RowLogits> at,
              std::span<const float> logits, std::span<RowResult> results);

 private:
  RowSampler rows_;
  std::vector<char> on_host_;         // by slot
  std::unique_ptr<ThreadPool> pool_;  // started when it is needed
  std::vector<SamplerWorkspace> workspaces_;
};

}  // namespace tl::cuda
