// Brings the masks of a step's guided rows to the device: on a stream of its own, beside the part of the step that
// makes logits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/cuda_executor.h"
#include "sampling/mask_threads.h"
#include "sampling/row_sampler.h"

namespace tl::cuda {

// A row of the batch whose tokens the device draws under the masks of a grammar: the first, and one for each draft.
struct GuidedRow {
  std::size_t row;
  std::int64_t first_mask;  // its place among the step's masks
  bool is_late = false;     // its masks were not there in time: they forbid all tokens
  std::string error = {};   // the grammar cannot be followed any further: likewise
};

class TokenMasks {
 public:
  // Where a step's masks are made, until the device has them.
  struct Staging {
    PinnedBuffer words;
    OwnedEvent copied;
  };

  // Borrows both.
  TokenMasks(const CudaExecutor& executor, const RowSampler& rows);

  // Reserves room for the masks of any step. It is called when a request first needs some: for most engines none does.
  void reserve(Staging& staging);
  // Makes the masks of the step's guided rows, of which there are some, puts their copy on the way, and lets the
  // executor's stream wait for it. The tokens of all steps before have been added to the texts. `logits`: reached when
  // the step has made its logits. `before`: when the step before it has ended, which reads masks in the same place.
  void put(const StepBatch& batch, std::span<GuidedRow> guided, const Staging& staging, const OwnedEvent& logits,
           const OwnedEvent& before);
  // As MaskThreads::take_woken.
  std::vector<int> take_woken() { return threads_ ? threads_->take_woken() : std::vector<int>(); }

 private:
  std::span<std::uint32_t> masks_of(const StepBatch& batch, const GuidedRow& guided, const Staging& staging) const;
  void make(const StepBatch& batch, std::span<const GuidedRow> guided, const Staging& staging);
  void wait(std::size_t num_rows, const OwnedEvent& logits);

  const CudaExecutor& executor_;
  const RowSampler& rows_;
  const std::size_t num_words_;  // of a mask
  const bool may_be_late_;       // not where steps of other requests are in flight behind the one before
  OwnedStream stream_;           // made with the first staging, as the threads
  std::unique_ptr<MaskThreads> threads_;
  std::vector<MaskThreads::Order> orders_;
};

}  // namespace tl::cuda
