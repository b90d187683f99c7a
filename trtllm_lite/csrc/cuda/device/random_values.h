// Random values on a device, for benchmarks and timing where a model's values are missing. Zeros would not do: a
// product of zeros takes less power, so it is faster on a GPU at its power limit.
#pragma once

#include "cuda/device/device.h"
#include "engine/records.h"

namespace tl::cuda {

// Scales that give random bytes and nibbles the deviation kMadeUpDeviation, and the offset that centers nibbles 0
// to 15.
constexpr float kByteScale = 0.02f / 42, kNibbleScale = 0.02f / 2.5f, kNibbleOffset = -8 * kNibbleScale;

// Deviation of random weights. Bytes scaled by kByteScale, in weights or rows, use about a third of their range.
constexpr float kMadeUpDeviation = 0.02f;

// A 32-bit word that holds `value` once as float32, or twice as a 16-bit type.
unsigned word_of(float value, DType dtype);

class RandomValues {
 public:
  // Normally distributed values of mean 0, the same in every process: bfloat16, float16, or integers or E4M3 to be
  // multiplied with one of the scales above. For E2M1, and for E4M3 in the layout spread_e4m3, all signs and fractions
  // are equally likely, so that the mean is 0 and the deviation about the same.
  RandomValues(const Device& device, DType dtype, Layout layout, float deviation, Stream stream);

  // Enqueues copies that fill `bytes` bytes from `to` on.
  void fill(DevicePtr to, std::size_t bytes, Stream stream) const;

 private:
  DeviceBuffer pattern_;
};

}  // namespace tl::cuda
