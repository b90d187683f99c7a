// ChannelMagnitudes on a CPU. A task is a few neighbouring columns, whose rows are added in order as float64.
#include "channel_magnitudes_schema.h"
#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "host/thread_pool.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kColumns = 256;  // columns per task
constexpr std::uint32_t kMagnitude = 0x7fffffff;

}  // namespace

void channel_magnitudes(const KernelArgs& args) {
  const Tensor& x = args.inputs[channel_magnitudes::kX];
  const float* from = x.as<const float>();
  float* y = args.outputs[channel_magnitudes::kY].as<float>();
  const std::int64_t rows = x.shape[0], features = x.shape[1];
  args.pool->parallel_for(ceil_div(features, kColumns), [=](std::int64_t task, int) {
    const std::int64_t first = task * kColumns, count = min(kColumns, features - first);
    // The bits of magnitudes, compared as integers, have the order of the magnitudes, with NaN as the largest.
    std::uint32_t largest[kColumns] = {};
    double sums[kColumns] = {};
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* elements = from + row * features + first;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, elements[i]) & kMagnitude;
        largest[i] = bits > largest[i] ? bits : largest[i];
        sums[i] += static_cast<double>(__builtin_bit_cast(float, bits));
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      y[first + i] = __builtin_bit_cast(float, largest[i]);
      y[features + first + i] = static_cast<float>(sums[i]);
    }
  });
}

}  // namespace tl::TL_ISA
