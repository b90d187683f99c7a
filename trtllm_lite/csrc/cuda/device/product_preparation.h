// Prepares products of cuBLASLt while an engine's weights are copied and its memory is reserved.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "cuda/device/device.h"
#include "cuda/device/matmul.h"

namespace tl::cuda {

// A kind of product, and the most rows that it has in any step.
struct ProductUse {
  Matmul* matmul;
  std::int64_t max_rows;
};

// Choosing algorithms takes the library about 0.1 ms each, loading a kernel up to 25 ms: threads share out the
// products.
class ProductPreparation {
 public:
  // Starts the threads. Borrows the device and the products.
  ProductPreparation(const Device& device, std::vector<ProductUse> uses);
  // Waits for all products. Called once; the products are used by no other thread before. Throws what preparing one of
  // them threw.
  void finish();

 private:
  void prepare_some();

  const Device& device_;
  const std::vector<ProductUse> uses_;
  std::atomic<std::size_t> next_ = 0;
  std::vector<std::future<void>> threads_;  // each waits for its thread when it is destroyed
};

}  // namespace tl::cuda
