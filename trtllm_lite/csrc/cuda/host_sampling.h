// Tells which requests of a GPU executor the device samples, and samples the others, which ask for more, on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/slot_records.h"
#include "host/thread_pool.h"
#include "sampling/row_sampler.h"

namespace tl::cuda {

constexpr std::int32_t kNoAdapter = -1;

class HostSampling {
 public:
  // Borrows the executor.
  explicit HostSampling(const CudaExecutor& executor);

  // As StepExecutor::set_slot.
  void set_slot(int slot, std::shared_ptr<const SlotParams> params, std::span<const std::int32_t> tokens,
                int num_prompt);
  const RowSampler& rows() const { return rows_; }
  // Whether the row's logits come to the host; else the device draws its token.
  bool takes(const StepRow& row) const { return who(row).is_host; }
  // Whether the device reports log-probabilities of the token that it draws for the row.
  bool reports_logprobs(const StepRow& row) const { return who(row).reports_logprobs; }
  // Whether the device draws the row's token under masks.
  bool guides(const StepRow& row) const { return who(row).is_guided; }
  bool guides(int slot) const { return who_[static_cast<std::size_t>(slot)].is_guided; }
  // The slot of the adapter that the row's request has; kNoAdapter if it has none.
  std::int32_t adapter_slot(const StepRow& row) const { return adapters_[static_cast<std::size_t>(row.request_slot)]; }
  // The records of the sequences whose tokens the device draws.
  SlotRecords& records() { return records_; }
  const SlotRecords& records() const { return records_; }

  // Fills in the results of the rows `taken`, on several threads; `at` has the places of all rows in the logits on the
  // device. The step has ended, and no later one is launched. Logits come to the host a window at a time, so that a
  // long prompt takes no more page-locked memory than a short one. Throws DeviceError.
  void finish(const StepBatch& batch, std::span<const std::size_t> taken, std::span<const RowLogits> at,
              std::span<RowResult> results);

 private:
  // Samples a sequence: the host, or else the device, which may do more than draw.
  struct Who {
    bool is_host = false, reports_logprobs = false, is_guided = false;
  };
  // One row of a step's logits: of those that RowLogits counts.
  struct Wanted {
    std::size_t row;  // of the batch
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
  std::vector<std::int32_t> adapters_;  // slots of those that the requests in slots have
  PinnedBuffer window_;                 // rows of logits; made, as what follows, when the first request needs it
  std::unique_ptr<ThreadPool> pool_;
  std::vector<SamplerWorkspace> workspaces_;
};

}  // namespace tl::cuda
