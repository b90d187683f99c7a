// The values that timed kernels compute with.
#pragma once

#include <map>

#include "cuda/device/program.h"
#include "cuda/device/random_values.h"

namespace tl::cuda {

// Random values. They are made once, because that takes a while. Borrows all its arguments.
class TimedValues {
 public:
  TimedValues(const Device& device, const Plan& plan) : device_(device), plan_(plan) {}

  // Fills the whole arena with elements of the activations' type, at the scale of a norm's results.
  void fill(const DeviceBuffer& arena, Stream stream);
  // Called after fill(). Fills the program's rows of 8-bit elements with values of their own type: the bytes of wider
  // elements may be NaN as E4M3.
  void fill_bytes(const Program& program, const Addresses& addresses, Stream stream);

 private:
  const RandomValues& of(DType dtype, float deviation, Stream stream);

  const Device& device_;
  const Plan& plan_;
  std::map<DType, RandomValues> values_;
};

}  // namespace tl::cuda
