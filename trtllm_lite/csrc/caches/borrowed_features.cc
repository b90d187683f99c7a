#include "caches/borrowed_features.h"

#include <algorithm>
#include <string>

#include "errors.h"

namespace tl {
namespace {

std::string form(const Engine& engine, std::int64_t num_blocks) {
  const Manifest& manifest = engine.manifest();
  if (manifest.feature_size == 0) return "none";
  return std::to_string(num_blocks) + " blocks of " + std::to_string(manifest.kv_cache.tokens_per_block) + " tokens, " +
         std::to_string(manifest.feature_size) + " elements of " + std::string(to_string(feature_dtype(engine))) +
         " each";
}

}  // namespace

DType feature_dtype(const Engine& engine) {
  const auto named = [](const PlanTensor& tensor) {
    return tensor.kind == TensorKind::kCache && tensor.name == kFeatures;
  };
  return std::ranges::find_if(engine.plan().tensors, named)->dtype;
}

void check_lender(const Engine& head, std::int64_t num_blocks, const DeviceExecutor* from) {
  const std::string wanted = form(head, num_blocks);
  const std::string found = from == nullptr ? "none" : form(from->engine(), from->num_blocks());
  if (found == wanted) return;
  throw ArgumentError("features: this engine is a head that drafts, expected another engine that keeps " + wanted +
                      ", found " + found + "; run the engine that the head was made for, with method eagle3");
}

}  // namespace tl
