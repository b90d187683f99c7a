// MixStreams on a CPU. A task is a row, whose sums are added in a fixed order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/row_tasks.h"
#include "cpu/simd/simd.h"
#include "mix_streams_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr int kInputs = 5, kOutputs = 4, kModalities = 4;

// The first stream, which may be the sum of two rows.
struct First {
  const float* x;
  const float* residual;  // null: zeros

  Vec load(std::int64_t i, std::int64_t count) const {
    const Vec value = load_first(x + i, count);
    return residual == nullptr ? value : value + load_first(residual + i, count);
  }
};

template <typename Other>
float dot(const First& first, std::int64_t size, const Other& other) {
  Vec sum = zero();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const Vec value = first.load(i, size - i);
    sum = fma(value, other(i, value), sum);
  }
  return reduce_add(sum);
}

// The factor of each input for each result.
struct Factors {
  float of[kOutputs][kInputs];
};

Factors factors_of(const First& x, const float* router, const float* weights, std::int64_t hidden, float epsilon) {
  const float squares = dot(x, hidden, [](std::int64_t, Vec value) { return value; });
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(hidden) + epsilon);
  float modalities[kModalities];
  for (int k = 0; k < kModalities; ++k) {
    const float* row = router + k * hidden;
    modalities[k] =
        tanhf(dot(x, hidden, [=](std::int64_t i, Vec) { return load_first(row + i, hidden - i); }) * inverse);
  }
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
  const auto* residual = args.inputs[mix_streams::kResidual].as<const float>();
  const auto* scale = args.inputs[mix_streams::kScale].as<const float>();
  auto* scaled = args.outputs[mix_streams::kScaled].as<float>();
  const int inputs = args.inputs[mix_streams::kX4].data == nullptr ? kInputs - 1 : kInputs;
  for_each_row(args.pool, rows, (kInputs + kOutputs) * hidden, [&](std::int64_t row) {
    const std::int64_t at = row * hidden;
    const float* x[kInputs];
    float* y[kOutputs];
    for (int i = 0; i < inputs; ++i) x[i] = args.inputs[mix_streams::kX0 + i].as<const float>() + at;
    for (int j = 0; j < kOutputs; ++j) y[j] = args.outputs[mix_streams::kY0 + j].as<float>() + at;
    const First first = {x[0], residual == nullptr ? nullptr : residual + at};
    const Factors factors = factors_of(first, router, weights, hidden, epsilon);
    for (std::int64_t n = 0; n < hidden; n += kLanes) {
      const std::int64_t count = hidden - n;
      Vec streams[kInputs] = {first.load(n, count)};
      for (int i = 1; i < inputs; ++i) streams[i] = load_first(x[i] + n, count);
      for (int j = 0; j < kOutputs; ++j) {
        Vec sum = zero();
        for (int i = 0; i < inputs; ++i) sum = fma(broadcast(factors.of[j][i]), streams[i], sum);
        store_first(y[j] + n, sum, count);
        if (j == 0 && scaled != nullptr) {
          store_first(scaled + at + n, scale == nullptr ? sum : sum * load_first(scale + n, count), count);
        }
      }
    }
  });
}

}  // namespace tl::TL_ISA
