// Decides which requests of a GPU executor are sampled on the device, and samples the others on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/step/slot_records.h"
#include "host/thread_pool.h"
#include "sampling/row_sampler.h"

namespace tl::cuda {

constexpr std::int32_t kNoAdapter = -1;

class HostSampling {
 public:
  // Borrows the executor.
  explicit HostSampling(const CudaExecutor& executor);

  // See StepExecutor::set_slot.
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt);
  const RowSampler& rows() const { return rows_; }
  // True if the host samples the row from a copy of its logits, false if the device draws its token.
  bool takes(const StepRow& row) const { return who(row).is_host; }
  // Whether the device reports the log probability of the token that it draws for the row.
  bool reports_logprobs(const StepRow& row) const { return who(row).reports_logprobs; }
  // Whether the device draws the row's (or slot's) token under masks.
  bool guides(const StepRow& row) const { return who(row).is_guided; }
  bool guides(int slot) const { return who_[static_cast<std::size_t>(slot)].is_guided; }
  // The adapter slot of the row's request; kNoAdapter if it has no adapter.
  std::int32_t adapter_slot(const StepRow& row) const { return adapters_[static_cast<std::size_t>(row.request_slot)]; }
  // The sampling records of the sequences whose tokens the device draws.
  SlotRecords& records() { return records_; }
  const SlotRecords& records() const { return records_; }

  // Samples the rows `taken` on several threads and fills in their results; `at` has the places of all rows in the
  // device's logits. The step must have ended, and no later step may have been launched. Logits are copied to the host
  // some rows (a window) at a time, so that page-locked memory does not grow with the prompt. Throws DeviceError.
  void finish(const StepBatch& batch, std::span<const std::size_t> taken, std::span<const RowLogits> at,
              std::span<RowResult> results);

 private:
  // How a sequence is sampled: on the host or on the device, and what else the device does for it.
  struct Who {
    bool is_host = false, reports_logprobs = false, is_guided = false;
  };
  // A row of a step's logits that the host needs.
  struct Wanted {
    std::size_t row;  // row of the batch
    int position;
  };
  const Who& who(const StepRow& row) const { return who_[static_cast<std::size_t>(row.request_slot)]; }
  void reserve_window(const RequestParams& params);
  void start_threads();
  void describe_prompts(const StepBatch& batch, std::span<const std::size_t> taken, std::span<const RowLogits> at,
                        std::span<RowResult> results);
  void describe(const StepBatch& batch, std::span<const Wanted> wanted, std::span<const RowLogits> at,
                std::span<RowResult> results);
  void draw(const StepBatch& batch, std::span<const std::size_t> rows, std::span<const RowLogits> at,
            std::span<RowResult> results);
  void fetch(std::span<const Wanted> wanted, std::span<const RowLogits> at);
  std::span<const float> window(std::size_t num_rows) const;

  const CudaExecutor& executor_;
  RowSampler rows_;
  SlotRecords records_;
  std::vector<Who> who_;                // by slot
  std::vector<std::int32_t> adapters_;  // by slot of the request: the slot of its adapter
  PinnedBuffer window_;  // rows of logits; made, like the members below, for the first request that needs them
  std::unique_ptr<ThreadPool> pool_;
  std::vector<SamplerWorkspace> workspaces_;
};

}  // namespace tl::cuda
