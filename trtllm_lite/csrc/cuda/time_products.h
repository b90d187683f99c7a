// Which cuBLASLt algorithm is fastest for each product of an engine, on this device and for so many rows.
#pragma once

#include <string>
#include <vector>

#include "cuda/program.h"
#include "cuda/time_candidates.h"

namespace tl::cuda {

struct ProductTime {
  const MatmulInstruction* product = nullptr;  // one of those alike
  std::int64_t rows = 0;
  MatmulAlgorithm algorithm{};
  double microseconds = 0;
  double heuristic_microseconds = 0;  // of what the library proposes first
};

// Times the first `num_candidates` algorithms that the library proposes for every kind of product and number of rows in
// `program`, and returns the best of each. A run is over the weights of several layers, which are cold in the L2 cache
// then. Overwrites what the products write. Throws DeviceError.
std::vector<ProductTime> time_products(const CudaProgram& program, const CudaExtents& extents,
                                       const Addresses& addresses, MatmulSet& matmuls, Stream stream,
                                       int num_candidates, const TimingEffort& effort);

}  // namespace tl::cuda
