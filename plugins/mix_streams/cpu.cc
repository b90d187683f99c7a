// MixStreams on a CPU. A task is a row, whose sums are added in a fixed order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "mix_streams_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr int kInputs = 5, kOutputs = 4, kModalities = 4;

float dot(const float* a, const float* b, std::int64_t size) {
  Vec sum = zero();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    sum = fma(load_first(a + i, size - i), load_first(b + i, size - i), sum);
  }
  return reduce_add(sum);
}

// The factor of each input for each result.
struct Factors {
  float of[kOutputs][kInputs];
};

Factors factors_of(const float* x, const float* router, const float* weights, std::int64_t hidden, float epsilon) {
  const float inverse = 1.0f / sqrtf(dot(x, x, hidden) / static_cast<float>(hidden) + epsilon);
  float modalities[kModalities];
  for (int k = 0; k < kModalities; ++k) modalities[k] = tanhf(dot(x, router + k * hidden, hidden) * inverse);
  Factors factors;
  for (int j = 0; j < kOutputs; ++j) {
    for (int i = 0; i < kInputs; ++i) {
      const float* weight = weights + j * kInputs + i;
      float factor = weight[0];
      for (int k = 0; k < kModalities; ++k) factor += weight[(1 + k) * kOutputs * kInputs] * modalities[k];
      factors.of[j][i] = factor;
    }
  }
  return factors;
}

}  // namespace

void mix_streams(const KernelArgs& args) {
  const Tensor& first = args.inputs[mix_streams::kX0];
  const auto* router = args.inputs[mix_streams::kRouter].as<const float>();
  const auto* weights = args.inputs[mix_streams::kWeights].as<const float>();
  const std::int64_t rows = first.shape[0], hidden = first.shape[1];
  const auto epsilon = static_cast<float>(mix_streams::attributes_of(args).epsilon);
  const int inputs = args.inputs[mix_streams::kX4].data == nullptr ? kInputs - 1 : kInputs;
  for_each_row(args.pool, rows, (kInputs + kOutputs) * hidden, [&](std::int64_t row) {
    const float* x[kInputs];
    for (int i = 0; i < inputs; ++i) x[i] = args.inputs[mix_streams::kX0 + i].as<const float>() + row * hidden;
    const Factors factors = factors_of(x[0], router, weights, hidden, epsilon);
    for (int j = 0; j < kOutputs; ++j) {
      float* y = args.outputs[mix_streams::kY0 + j].as<float>() + row * hidden;
      for (std::int64_t n = 0; n < hidden; n += kLanes) {
        Vec sum = zero();
        for (int i = 0; i < inputs; ++i) {
          sum = fma(broadcast(factors.of[j][i]), load_first(x[i] + n, hidden - n), sum);
        }
        store_first(y + n, sum, hidden - n);
      }
    }
  });
}

}  // namespace tl::TL_ISA
