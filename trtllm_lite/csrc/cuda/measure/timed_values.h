// The values that what is timed computes with.
#pragma once

#include <map>

#include "cuda/program.h"
#include "cuda/random_values.h"

namespace tl::cuda {

// Random ones, which are made once, because that takes a while. Borrows all it is given.
class TimedValues {
 public:
  TimedValues(const Device& device, const Plan& plan) : device_(device), plan_(plan) {}

  // Puts elements of the type of activations everywhere into the arena, of the scale that norms leave behind.
  void fill(const DeviceBuffer& arena, Stream stream);
  // Then puts bytes of their own type where a program has such rows in the arena: among the bytes of wider elements are
  // some that are no numbers as E4M3.
  void fill_bytes(const Program& program, const Addresses& addresses, Stream stream);

 private:
  const RandomValues& of(DType dtype, float deviation, Stream stream);

  const Device& device_;
  const Plan& plan_;
  std::map<DType, RandomValues> values_;
};

}  // namespace tl::cuda
