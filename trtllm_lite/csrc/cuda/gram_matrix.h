// The sum of the outer products x x^T of the rows x that steps leave as an output, for calibration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "cuda/cuda_executor.h"

namespace tl::cuda {

// float32 [features, features] on the device, zero at first. Threads that use matrices of one executor take turns with
// each other and with its steps.
class GramMatrix {
 public:
  // Of the output `name`, rows of 16 bits. Borrows the executor. Throws ArgumentError (no such output), DeviceError (no
  // cuBLASLt), LimitError (memory).
  GramMatrix(CudaExecutor& executor, std::string name);
  ~GramMatrix();
  GramMatrix(const GramMatrix&) = delete;
  GramMatrix& operator=(const GramMatrix&) = delete;

  std::int64_t features() const { return features_; }
  // Adds the rows of the executor's last step. Returns at once.
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
  MatrixLayout rows_ = nullptr, square_ = nullptr;      // x^T [features, rows] as the library sees it, and the sum
  std::map<std::int64_t, MatmulAlgorithm> algorithms_;  // by number of rows
};

}  // namespace tl::cuda
