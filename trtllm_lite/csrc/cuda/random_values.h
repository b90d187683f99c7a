// Made-up values on a device, where a model's are missing: for benchmarks, and to time what computes with them. A
// product of zeros takes less power than one of a model's values, so it is faster on a card at its power limit.
#pragma once

#include "cuda/device.h"
#include "engine/records.h"

namespace tl::cuda {

// The scales that give random bytes and nibbles the deviation of the others, and the offset of nibbles of 0 to 15.
constexpr float kByteScale = 0.02f / 42, kNibbleScale = 0.02f / 2.5f, kNibbleOffset = -8 * kNibbleScale;

// Of the weights that are made up. Bytes under kByteScale, of weights or rows, are within about a third of their range.
constexpr float kMadeUpDeviation = 0.02f;

// 32 bits of copies of `value`, as one float32 or as two elements of 16 bits.
unsigned word_of(float value, DType dtype);

class RandomValues {
 public:
  // Normal ones of mean 0, as bfloat16, float16, or as integers or E4M3 to be multiplied with one of the scales; the
  // same in every process. Of E2M1, and of E4M3 whose bits lie apart, all signs and fractions are equally likely, so
  // that the mean is 0, and the deviation about the same.
  RandomValues(const Device& device, DType dtype, Layout layout, float deviation, Stream stream);

  // Puts copies on the stream that fill `bytes` from `to` on.
  void fill(DevicePtr to, std::size_t bytes, Stream stream) const;

 private:
  DeviceBuffer pattern_;
};

}  // namespace tl::cuda
