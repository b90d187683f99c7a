// Copies the masks of a step's guided rows to the device, on its own stream, while the step makes its logits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_executor.h"
#include "sampling/mask_threads.h"
#include "sampling/row_sampler.h"

namespace tl::cuda {

// A row of the batch that the device samples under grammar masks: one for its next token and one for each draft token.
struct GuidedRow {
  std::size_t row;
  std::int64_t first_mask;  // index of its first mask in the step
  bool is_late = false;     // its masks were late; all its tokens are forbidden
  std::string error = {};   // why the grammar cannot be followed further; all its tokens are forbidden
};

class TokenMasks {
 public:
  // Host memory for a step's masks until the device has copied them.
  struct Staging {
    PinnedBuffer words;
    OwnedEvent copied;
  };

  // Borrows the executor and `rows`.
  TokenMasks(const CudaExecutor& executor, const RowSampler& rows);

  // Reserves memory for the masks of any step. Called when the first request needs masks.
  void reserve(Staging& staging);
  // Makes the masks of the step's guided rows (at least one), enqueues their copy, and makes the executor's stream wait
  // for it. The tokens of all earlier steps must have been added to the texts. `logits`: reached when the step has made
  // its logits. `before`: reached when the step before, which reads masks in the same place, has ended.
  void put(const StepBatch& batch, std::span<GuidedRow> guided, const Staging& staging, const OwnedEvent& logits,
           const OwnedEvent& before);
  // See MaskThreads::take_woken.
  std::vector<int> take_woken() { return threads_ ? threads_->take_woken() : std::vector<int>(); }

 private:
  std::span<std::uint32_t> masks_of(const StepBatch& batch, const GuidedRow& guided, const Staging& staging) const;
  void make(const StepBatch& batch, std::span<const GuidedRow> guided, const Staging& staging);
  void wait(std::size_t num_rows, const OwnedEvent& logits);

  const CudaExecutor& executor_;
  const RowSampler& rows_;
  const std::size_t num_words_;  // words of a mask
  const bool may_be_late_;       // see wait()
  OwnedStream stream_;           // made with the first staging, like the threads
  std::unique_ptr<MaskThreads> threads_;
  std::vector<MaskThreads::Order> orders_;
};

}  // namespace tl::cuda
