// Estimates what preempting a sequence costs, from the executor's timings.
#pragma once

#include <algorithm>

#include "executor/step.h"

namespace tl {

class CostModel {
 public:
  // Estimated seconds to recompute `num_tokens`, and to copy `num_blocks` to the host and back.
  double recompute_seconds(int num_tokens) const { return num_tokens * seconds_per_token_; }
  double swap_seconds(int num_blocks) const { return 2.0 * num_blocks * seconds_per_block_; }
  // Mean seconds per token over all prefill so far, without an initial estimate; 0 before any prefill.
  double prefill_seconds_per_token() const { return prefill_tokens_ > 0 ? prefill_seconds_ / prefill_tokens_ : 0; }

  void observe(const StepBatch& batch, const StepResult& result) {
    // Recomputing is prefill. Decode steps are not counted, because they spend their time on reading weights.
    const int num_tokens = static_cast<int>(batch.token_ids.size());
    if (result.compute_seconds > 0 && num_tokens > 2 * batch.num_decode_tokens) {
      average(seconds_per_token_, result.compute_seconds / num_tokens);
      prefill_seconds_ += result.compute_seconds;
      prefill_tokens_ += num_tokens;
    }
    const auto is_swapped = [](const CopyOrder& copy) { return copy.kind != CopyKind::kDeviceToDevice; };
    if (result.copy_seconds > 0 && !batch.copies.empty() && std::ranges::all_of(batch.copies, is_swapped)) {
      average(seconds_per_block_, result.copy_seconds / static_cast<double>(batch.copies.size()));
    }
  }

 private:
  static void average(double& mean, double sample) { mean += kWeight * (sample - mean); }

  // About the last ten observations count. The initial values are those of a small model on one CPU core with 1 MB
  // blocks.
  static constexpr double kWeight = 0.1;
  double seconds_per_token_ = 1e-3;
  double seconds_per_block_ = 2e-4;
  double prefill_seconds_ = 0, prefill_tokens_ = 0;
};

}  // namespace tl
