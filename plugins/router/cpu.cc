// Router on a CPU: scores in float32, in order of in_features for every row; then the largest of them, one by one.
#include <string.h>

#include "cpu/kernel.h"
#include "cpu/simd.h"
#include "host/thread_pool.h"
#include "router_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr std::int64_t kExpertsPerTask = 4 * kLanes;

// Scores of up to kExpertsPerTask experts from `first` on.
void score(const float* x, const float* weight, const float* bias, std::int64_t depth, std::int64_t experts,
           std::int64_t first, float* to) {
  for (std::int64_t e = first; e < min(first + kExpertsPerTask, experts); e += kLanes) {
    const std::int64_t count = experts - e;
    Vec sum = bias ? load_first(bias + e, count) : zero();
    if (count >= kLanes) {
      for (std::int64_t k = 0; k < depth; ++k) sum = fma(broadcast(x[k]), load(weight + k * experts + e), sum);
      store(to + e, sum);
    } else {
      for (std::int64_t k = 0; k < depth; ++k) {
        sum = fma(broadcast(x[k]), load_first(weight + k * experts + e, count), sum);
      }
      store_first(to + e, sum, count);
    }
  }
}

float sum_of(const float* values, std::int64_t count) {
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

void softmax(float* values, std::int64_t count) {
  float largest = values[0];
  for (std::int64_t i = 1; i < count; ++i) largest = values[i] > largest ? values[i] : largest;
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store_first(values + i, exp(load_first(values + i, count - i) - broadcast(largest)), count - i);
  }
  const float sum = sum_of(values, count);
  for (std::int64_t i = 0; i < count; ++i) values[i] /= sum;
}

// Scores that are no numbers are larger than none, so that every row has experts that exist.
void choose(const float* scores, std::int64_t experts, std::int64_t top_k, char* taken, std::int32_t* ids,
            float* shares) {
  memset(taken, 0, static_cast<std::size_t>(experts));
  for (std::int64_t slot = 0; slot < top_k; ++slot) {
    std::int64_t best = -1;
    for (std::int64_t e = 0; e < experts; ++e) {
      if (!taken[e] && (best < 0 || scores[e] > scores[best])) best = e;
    }
    taken[best] = 1;
    ids[slot] = static_cast<std::int32_t>(best);
    shares[slot] = scores[best];
  }
}

}  // namespace

void router(const KernelArgs& args) {
  const Tensor& x = args.inputs[router::kX];
  const Tensor& ids = args.outputs[router::kIds];
  const auto attributes = router::attributes_of(args);
  const auto scoring = attributes.scoring;
  const std::int64_t top_k = attributes.top_k;
  const auto* weight = args.inputs[router::kWeight].as<const float>();
  const auto* bias = args.inputs[router::kBias].as<const float>();
  auto* scores = args.outputs[router::kScores].as<float>();
  auto* shares = args.outputs[router::kShares].as<float>();
  const std::int64_t rows = x.shape[0], depth = x.shape[1];
  const std::int64_t experts = args.inputs[router::kWeight].shape[1], parts = ceil_div(experts, kExpertsPerTask);
  args.pool->parallel_for(rows * parts, [&](std::int64_t task, int) {
    const std::int64_t row = task / parts, first = task % parts * kExpertsPerTask;
    score(x.as<const float>() + row * depth, weight, bias, depth, experts, first, scores + row * experts);
  });
  args.pool->parallel_for(rows, [&](std::int64_t row, int thread) {
    float* own = scores + row * experts;
    float* chosen = shares + row * top_k;
    if (scoring != router::Scoring::kSoftmaxOfChosen) softmax(own, experts);
    choose(own, experts, top_k, static_cast<char*>(args.pool->scratch(thread)), ids.as<std::int32_t>() + row * top_k,
           chosen);
    if (scoring == router::Scoring::kSoftmaxOfChosen) softmax(chosen, top_k);
    if (scoring != router::Scoring::kNormalizedSoftmax) return;
    const float sum = sum_of(chosen, top_k);
    for (std::int64_t slot = 0; slot < top_k; ++slot) chosen[slot] /= sum;
  });
}

}  // namespace tl::TL_ISA
