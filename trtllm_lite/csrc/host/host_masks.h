// The masks of a step's guided rows, where the host samples: made beside the part of the step that makes logits.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "batching/step.h"
#include "sampling/mask_threads.h"
#include "sampling/row_sampler.h"

namespace tl {

class HostMasks {
 public:
  // Borrows the sampler.
  explicit HostMasks(const RowSampler& rows) : rows_(rows) {}

  // Begins with the masks of the batch's rows that sample under grammars, in the place of those before. The tokens of
  // all steps before have been added to the texts.
  void start(const StepBatch& batch);
  // Waits, once the logits are there, for as long as that is worth it for all rows (has_waited_enough), and never
  // longer than a step may take. Returns how long it was.
  std::chrono::nanoseconds wait(std::size_t num_rows);

  // As MaskThreads::take_woken.
  std::vector<int> take_woken() { return threads_ ? threads_->take_woken() : std::vector<int>(); }

  // The rows that were begun with, in order, and after wait() what came of the masks of each.
  std::span<const std::size_t> rows() const { return guided_; }
  std::span<const RowMasks> masks() const { return masks_; }

 private:
  using Clock = std::chrono::steady_clock;

  const RowSampler& rows_;
  Clock::time_point begin_;
  std::vector<std::uint32_t> words_;
  std::vector<std::size_t> guided_;
  std::vector<RowMasks> masks_;
  std::vector<MaskThreads::Order> orders_;
  std::unique_ptr<MaskThreads> threads_;  // made when a request first needs some: for most engines none does
};

}  // namespace tl
