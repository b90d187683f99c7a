// Embedding on a CPU: rows of the table, widened to float.
#include "cpu/kernel.h"
#include "cpu/simd.h"
#include "cpu/thread_pool.h"
#include "embedding_schema.h"

namespace tl::TL_ISA {
namespace {

constexpr int kPanelWidth = 64;

TL_INLINE float widen(float x) { return x; }
template <typename Half>
TL_INLINE float widen(Half x) {
  const Half lanes[kLanes] = {x};
  float widened[kLanes];
  store(widened, load(lanes));
  return widened[0];
}

// Element k of a token's row lies at start[k * stride].
template <typename Weight>
void gather(const Tensor& table, std::int64_t token, float* y) {
  const std::int64_t hidden = table.shape[1];
  const bool panels = table.layout == Layout::kPanel64;
  const std::int64_t stride = panels ? kPanelWidth : 1;
  const Weight* start = table.as<const Weight>();
  start += panels ? token / kPanelWidth * hidden * kPanelWidth + token % kPanelWidth : token * hidden;
  for (std::int64_t k = 0; k < hidden; ++k) y[k] = widen(start[k * stride]);
}

}  // namespace

void embedding(const KernelArgs& args) {
  const Tensor& table = args.inputs[embedding::kWeight];
  const auto* token_ids = args.inputs[embedding::kTokenIds].as<const std::int32_t>();
  const std::int64_t num_tokens = args.inputs[embedding::kTokenIds].shape[0], hidden = table.shape[1];
  float* y = args.outputs[embedding::kY].as<float>();
  args.pool->parallel_for(num_tokens, [&](std::int64_t t, int) {
    switch (table.dtype) {
      case DType::kBFloat16:
        return gather<BFloat16>(table, token_ids[t], y + t * hidden);
      case DType::kFloat16:
        return gather<Float16>(table, token_ids[t], y + t * hidden);
      default:
        return gather<float>(table, token_ids[t], y + t * hidden);
    }
  });
}

}  // namespace tl::TL_ISA
