// Measures which cuBLASLt algorithm is fastest for each product of an engine, on this device and by number of rows.
#pragma once

#include <string>
#include <vector>

#include "cuda/measure/time_candidates.h"
#include "cuda/program.h"

namespace tl::cuda {

struct ProductTime {
  const MatmulInstruction* product = nullptr;  // one of those alike
  std::int64_t rows = 0;
  MatmulAlgorithm algorithm{};
  double microseconds = 0;
  double heuristic_microseconds = 0;  // of what the library proposes first
};

// The step to time: its products, and the number of rows of the next smaller step that is timed.
struct TimedStep {
  const Program* program = nullptr;
  Extents extents, smaller;
};

// Times the first `num_candidates` algorithms that the library proposes for every kind of product and number of rows in
// the step, and returns the best of those that compute any number of rows up to it from that of the smaller step on; if
// there is none, parts of these rows have one each. None for products of no more rows than in the smaller step. A run
// is over the weights of several layers, which are cold in the L2 cache then. Overwrites what the products write.
// Throws DeviceError.
std::vector<ProductTime> time_products(const TimedStep& step, const Addresses& addresses, MatmulSet& matmuls,
                                       Stream stream, int num_candidates, const TimingEffort& effort);

}  // namespace tl::cuda
