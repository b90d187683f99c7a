// Pooling on a CPU. A task is a sequence; its rows are added in order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/norm_row.h"
#include "host/thread_pool.h"
#include "pooling_schema.h"

namespace tl::TL_ISA {
namespace {

// y = factor * the sum of `count` rows of x.
void add_rows(const float* x, std::int64_t count, std::int64_t hidden, float factor, float* y) {
  for (std::int64_t i = 0; i < hidden; i += kLanes) {
    Vec sum = zero();
    for (std::int64_t row = 0; row < count; ++row) sum = sum + load_first(x + row * hidden + i, hidden - i);
    store_first(y + i, sum * broadcast(factor), hidden - i);
  }
}

void divide_by_norm(float* y, std::int64_t hidden) {
  const float squares = sum_over_row(hidden, [&](std::int64_t i, Vec so_far) {
    const Vec x = load_first(y + i, hidden - i);
    return fma(x, x, so_far);
  });
  if (squares == 0) return;
  const Vec norm = broadcast(sqrtf(squares));
  for (std::int64_t i = 0; i < hidden; i += kLanes) {
    store_first(y + i, load_first(y + i, hidden - i) / norm, hidden - i);
  }
}

}  // namespace

void pooling(const KernelArgs& args) {
  const Tensor& x = args.inputs[pooling::kX];
  const Tensor& cu_seqlens = args.inputs[pooling::kCuSeqlens];
  const auto attributes = pooling::attributes_of(args);
  const std::int64_t hidden = x.shape[1];
  float* out = args.outputs[pooling::kY].as<float>();
  args.pool->parallel_for(cu_seqlens.shape[0] - 1, [&](std::int64_t seq, int) {
    const auto* ends = cu_seqlens.as<const std::int32_t>() + seq;
    const std::int64_t count = attributes.mode == pooling::Mode::kMean ? ends[1] - ends[0] : 1;
    float* y = out + seq * hidden;
    add_rows(x.as<const float>() + ends[0] * hidden, count, hidden, 1.0f / static_cast<float>(count), y);
    if (attributes.normalization == pooling::Normalization::kL2) divide_by_norm(y, hidden);
  });
}

}  // namespace tl::TL_ISA
