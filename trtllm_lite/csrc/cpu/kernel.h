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
  std::int64_t block_bytes = 0;  // of a paged cache: from a block to the next

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// An attribute in schema order. `i` is also the index of a choice; `s` is zero-terminated text.
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
  // The type to which activations may be rounded before products with weights: kFloat32 (no rounding) or kBFloat16.
  // Products are accumulated in float32.
  DType product_dtype = DType::kFloat32;
  // The adapter of each token of the step, or null; the pointer itself is null if no token has one.
  const LowRankPart* const* adapters = nullptr;
  // The index of this rank among those that compute the step together.
  std::int64_t rank = 0;
};

// A kernel. Arguments are checked against the schema when the engine is loaded, step inputs at the beginning of a step.
using Kernel = void (*)(const KernelArgs&);

// The kernel of an operator for an instruction set of isas.cmake.
struct KernelEntry {
  const char* op;
  const char* isa;
  Kernel kernel;
};

// The most blocks in a row of a weight with scales.
constexpr std::int64_t kMaxWeightBlocks = 1 << 16;

}  // namespace tl
