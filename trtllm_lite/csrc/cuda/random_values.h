// Made-up values on a device, where a model's are missing: for benchmarks, and to time what computes with them. A
// product of zeros takes less power than one of a model's values, so it is faster on a card at its power limit.
#pragma once

#include "cuda/device.h"
#include "engine/records.h"

namespace tl::cuda {

// The scale that gives random bytes the deviation of the others.
constexpr float kByteScale = 0.02f / 42;

class RandomValues {
 public:
  // Normal ones of mean 0, as bfloat16, float16, or int8 or E4M3 to be multiplied with kByteScale; the same in every
  // process.
  RandomValues(const Device& device, DType dtype, float deviation, Stream stream);

  // Puts copies on the stream that fill `bytes` from `to` on.
  void fill(DevicePtr to, std::size_t bytes, Stream stream) const;

 private:
  DeviceBuffer pattern_;
};

}  // namespace tl::cuda
