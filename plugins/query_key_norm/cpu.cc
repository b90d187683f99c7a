// QueryKeyNorm on a CPU. A task is a row, summed in a fixed order.
#include <math.h>

#include "cpu/kernel.h"
#include "cpu/norm_row.h"
#include "query_key_norm_schema.h"

namespace tl::TL_ISA {
namespace {

void normalize(const float* x, const float* weight, std::int64_t size, float epsilon, float* y) {
  const float squares = sum_over_row(size, [&](std::int64_t i, Vec sum) {
    const Vec value = load_first(x + i, size - i);
    return fma(value, value, sum);
  });
  const Vec factor = broadcast(1.0f / sqrtf(squares / static_cast<float>(size) + epsilon));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    store_first(y + i, load_first(x + i, size - i) * factor * load_first(weight + i, size - i), size - i);
  }
}

}  // namespace

void query_key_norm(const KernelArgs& args) {
  const auto in = [&](int index) -> const Tensor& { return args.inputs[index]; };
  const Tensor& rows = in(query_key_norm::kX);
  const auto* query_weight = in(query_key_norm::kQueryWeight).as<const float>();
  const auto* key_weight = in(query_key_norm::kKeyWeight).as<const float>();
  const std::int64_t queries = in(query_key_norm::kQueryWeight).shape[0];
  const std::int64_t keys = in(query_key_norm::kKeyWeight).shape[0], features = rows.shape[1];
  const auto epsilon = static_cast<float>(query_key_norm::attributes_of(args).epsilon);
  for_each_row(args.pool, rows.shape[0], features, [&](std::int64_t row) {
    const float* x = rows.as<const float>() + row * features;
    float* y = args.outputs[query_key_norm::kY].as<float>() + row * features;
    normalize(x, query_weight, queries, epsilon, y);
    normalize(x + queries, key_weight, keys, epsilon, y + queries);
    for (std::int64_t i = queries + keys; i < features; i += kLanes) {
      store_first(y + i, load_first(x + i, features - i), features - i);
    }
  });
}

}  // namespace tl::TL_ISA
