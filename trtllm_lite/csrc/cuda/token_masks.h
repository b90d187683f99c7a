// Brings the masks of a step's guided rows to the device: on a stream of its own, beside the part of the step that
// makes logits.
#pragma once

#include <span>
#include <string>

#include "cuda/cuda_executor.h"
#include "cuda/host_sampling.h"

namespace tl::cuda {

class TokenMasks {
 public:
  // Where a step's masks are made, until the device has them.
  struct Staging {
    PinnedBuffer words;
    OwnedEvent copied;
  };

  // Borrows both.
  TokenMasks(const CudaExecutor& executor, HostSampling& host);

  // Reserves room for the masks of any step. It is called when a request first needs some: for most engines none does.
  void reserve(Staging& staging);
  // Makes the masks of the step's guided rows, of which there are some, puts their copy on the way, and lets the
  // executor's stream wait for it. The step before has ended. `errors`: see HostSampling::fill_masks.
  void put(const StepBatch& batch, std::span<const GuidedRow> guided, const Staging& staging,
           std::span<std::string> errors);

 private:
  const CudaExecutor& executor_;
  HostSampling& host_;
  const std::size_t num_words_;  // of a mask
  OwnedStream stream_;           // made with the first staging
};

}  // namespace tl::cuda
