// The contract between the runtime and a kernel. Kernels see raw pointers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtypes.h"
#include "host/low_rank_part.h"

namespace tl {

class ThreadPool;

// One operand with the extents of this step. `data` is null for an absent optional operand.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kRowMajor;
  int rank = 0;
  std::int64_t shape[kMaxRank] = {};

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// An attribute in schema order; `i` is also the position of a choice, and `s` a text that ends with a zero byte.
union AttributeValue {
  std::int64_t i;
  double f;
  const char* s;
};

struct KernelArgs {
  const Tensor* inputs;
  const Tensor* outputs;
  const AttributeValue* attributes;
  ThreadPool* pool;
  // What activations may be rounded to before they are multiplied with weights: kFloat32, which changes nothing, or
  // kBFloat16. Products are summed in float32.
  DType product_dtype = DType::kFloat32;
  // The adapter of each token of the step, null of a token without one; null itself if no token has one.
  const LowRankPart* const* adapters = nullptr;
  // The number of the rank among those that compute the step together.
  std::int64_t rank = 0;
};

// A kernel. Its arguments were checked against the schema when the engine was loaded, step inputs when the step began.
using Kernel = void (*)(const KernelArgs&);

// The most blocks that rows of a weight with scales have.
constexpr std::int64_t kMaxWeightBlocks = 1 << 16;

}  // namespace tl
