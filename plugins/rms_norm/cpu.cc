// RmsNorm on a CPU: a row is one thread's work, in a fixed order of summation.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/simd.h"
#include "cpu/thread_pool.h"
#include "rms_norm_schema.h"

namespace tl::TL_ISA {
namespace {

// Below this many elements a task costs less than handing it out.
constexpr std::int64_t kMinTaskElements = 16384;

struct Row {
  const float* x;
  const float* residual;  // null: zero
  const float* weight;
  float* sum;  // null: not wanted
  float* y;
  std::int64_t size;
};

TL_INLINE Vec load_sum(const Row& row, std::int64_t i) {
  const Vec x = load_first(row.x + i, row.size - i);
  return row.residual ? x + load_first(row.residual + i, row.size - i) : x;
}

void normalize(const Row& row, float epsilon) {
  constexpr int kChains = 4;
  Vec squares[kChains] = {zero(), zero(), zero(), zero()};
  for (std::int64_t i = 0, chain = 0; i < row.size; i += kLanes, chain = (chain + 1) % kChains) {
    const Vec x = load_sum(row, i);
    squares[chain] = fma(x, x, squares[chain]);
    // y serves as memory for the sum when the caller does not want it.
    store_first((row.sum ? row.sum : row.y) + i, x, row.size - i);
  }
  const float total = reduce_add((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const Vec factor = broadcast(1.0f / sqrtf(total / static_cast<float>(row.size) + epsilon));
  for (std::int64_t i = 0; i < row.size; i += kLanes) {
    const Vec x = load_first((row.sum ? row.sum : row.y) + i, row.size - i);
    store_first(row.y + i, x * factor * load_first(row.weight + i, row.size - i), row.size - i);
  }
}

}  // namespace

void rms_norm(const KernelArgs& args) {
  const Tensor& x = args.inputs[rms_norm::kX];
  const float* residual = args.inputs[rms_norm::kResidual].as<const float>();
  const float* weight = args.inputs[rms_norm::kWeight].as<const float>();
  float* y = args.outputs[rms_norm::kY].as<float>();
  float* sum = args.outputs[rms_norm::kSum].as<float>();
  const auto attributes = rms_norm::attributes_of(args);
  const std::int64_t rows = x.shape[0], size = x.shape[1];
  const std::int64_t task_rows = ceil_div(kMinTaskElements, size);
  args.pool->parallel_for(ceil_div(rows, task_rows), [&](std::int64_t task, int) {
    const std::int64_t last = min((task + 1) * task_rows, rows);
    for (std::int64_t r = task * task_rows; r < last; ++r) {
      const std::int64_t at = r * size;
      normalize({x.as<const float>() + at, residual ? residual + at : nullptr, weight, sum ? sum + at : nullptr, y + at,
                 size},
                static_cast<float>(attributes.epsilon));
    }
  });
}

}  // namespace tl::TL_ISA
