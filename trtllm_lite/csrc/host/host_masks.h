// The masks of a step's guided rows for sampling on the host, computed while the device makes logits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "executor/step.h"
#include "sampling/mask_threads.h"
#include "sampling/row_sampler.h"

namespace tl {

class HostMasks {
 public:
  // Borrows the sampler. If masks cannot be late, wait() returns when all are made, or have taken so long (kMostLate)
  // that their requests end with an error.
  HostMasks(const RowSampler& rows, bool can_be_late) : rows_(rows), can_be_late_(can_be_late) {}

  // Starts to compute the masks of the batch's rows that sample under grammars, overwriting those of the batch before.
  // The tokens of all earlier steps must have been added to the texts.
  void start(const StepBatch& batch);
  // Called when the logits are there. If masks can be late, waits for them as long as that is worth it for all rows
  // (has_waited_enough), but never longer than a step may take. Returns the time waited.
  std::chrono::nanoseconds wait(std::size_t num_rows);

  // See MaskThreads::take_woken.
  std::vector<int> take_woken() { return threads_ ? threads_->take_woken() : std::vector<int>(); }

  // The guided rows in order and, after wait(), the state of each row's masks.
  std::span<const std::size_t> rows() const { return guided_; }
  std::span<const RowMasks> masks() const { return masks_; }

 private:
  using Clock = std::chrono::steady_clock;

  const RowSampler& rows_;
  const bool can_be_late_;
  Clock::time_point begin_;
  std::vector<std::uint32_t> words_;
  std::vector<std::size_t> guided_;
  std::vector<RowMasks> masks_;
  std::vector<MaskThreads::Order> orders_;
  std::unique_ptr<MaskThreads> threads_;  // made when a request first needs masks
};

}  // namespace tl
