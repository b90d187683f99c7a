// Measures which cuBLASLt algorithm is fastest on this device, by kind of product and number of rows.
#pragma once

#include <string>
#include <vector>

#include "cuda/device/program.h"
#include "cuda/measure/time_candidates.h"

namespace tl::cuda {

struct ProductTime {
  const MatmulInstruction* product = nullptr;  // one product of this kind
  std::int64_t rows = 0;
  MatmulAlgorithm algorithm{};
  double microseconds = 0;
  double heuristic_microseconds = 0;  // time of the library's first proposal
};

// The step to time: its program and extents, and the extents of the next smaller step that is timed.
struct TimedStep {
  const Program* program = nullptr;
  Extents extents, smaller;
};

// Times the first `num_candidates` algorithms that the library proposes for every kind of product and number of rows in
// the step. Returns the fastest algorithm that supports all numbers of rows above the smaller step's, up to this
// step's; if none supports them all, the range is cut into parts with an algorithm each. Products with no more rows
// than in the smaller step are left out. A run covers the weights of several layers, so that they are cold in the L2
// cache. Overwrites the results of the products. Throws DeviceError.
std::vector<ProductTime> time_products(const TimedStep& step, const Addresses& addresses, MatmulSet& matmuls,
                                       Stream stream, int num_candidates, const TimingEffort& effort);

}  // namespace tl::cuda
