// The Gram matrix of an output, for calibration: the sum of the outer products x x^T of its rows x over steps.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// A float32 matrix [features, features] on the device, initially zero. Threads that use matrices of one executor must
// take turns with each other and with its steps.
class GramMatrix {
 public:
  // `name`: an output of 16-bit elements. Borrows the executor. Throws ArgumentError (no such output), DeviceError (no
  // cuBLASLt), LimitError (memory).
  GramMatrix(CudaExecutor& executor, std::string name);
  ~GramMatrix();
  GramMatrix(const GramMatrix&) = delete;
  GramMatrix& operator=(const GramMatrix&) = delete;

  std::int64_t features() const { return features_; }
  // Enqueues the addition of the rows of the executor's last step, and returns at once.
  void add();
  // The sum so far.
  std::unique_ptr<float[]> values();

 private:
  MatmulAlgorithm algorithm_for(std::int64_t rows);

  CudaExecutor& executor_;
  const std::string name_;
  const Blas& blas_;
  std::int64_t features_ = 0;
  DeviceBuffer sum_;
  MatmulDescriptor descriptor_ = nullptr;
  MatrixLayout rows_ = nullptr, square_ = nullptr;  // the rows as the library sees them, x^T [features, rows]; the sum
  std::map<std::int64_t, MatmulAlgorithm> algorithms_;  // by number of rows
};

}  // namespace tl::cuda
