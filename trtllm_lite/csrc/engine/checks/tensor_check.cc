#include "engine/checks/tensor_check.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "engine/checks/call_check.h"
#include "engine/checks/plan_check.h"
#include "engine/low_rank_parts.h"
#include "errors.h"

namespace tl {
namespace {

[[noreturn]] void fail(const PlanTensor& tensor, const std::string& message) {
  throw EngineError("plan: tensor " + tensor.name + ": " + message);
}

bool all_integers(std::span<const Dim> shape) {
  return std::ranges::none_of(shape, [](const Dim& dim) { return dim.symbol.has_value(); });
}

bool is_chosen(const Dim& dim) { return dim.symbol == Symbol::kNumBlocks || dim.symbol == Symbol::kNumLoras; }

bool is_float(DType dtype) { return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

class TensorChecker {
 public:
  TensorChecker(const Plan& plan, const Manifest& manifest, const Container& container, const KeptCaches& kept)
      : plan_(plan), manifest_(manifest), container_(container), kept_(kept) {}

  void check(const PlanTensor& tensor) {
    max_bytes(plan_, tensor);  // throws if the size overflows
    if (tensor.kind != TensorKind::kWeight && tensor.layout != Layout::kRowMajor) fail(tensor, "expected row_major");
    switch (tensor.kind) {
      case TensorKind::kInput:
        return check_input(tensor);
      case TensorKind::kArena:
        return check_place(tensor, plan_.arena_bytes);
      case TensorKind::kState:
        return check_place(tensor, plan_.state_bytes);
      case TensorKind::kWeight:
        return check_weight(tensor);
      case TensorKind::kCache:
        return check_cache(tensor);
      case TensorKind::kAdapter:
        return check_adapter(tensor);
    }
  }

 private:
  void check_input(const PlanTensor& tensor) const {
    const int index = step_input_index(tensor.name);
    if (index < 0) fail(tensor, "expected the name of a step input");
    const StepInput& input = kStepInputs[index];
    if (input.rows) return check_rows(tensor, input.shape[0]);
    bool matches = tensor.dtype == DType::kInt32 && std::cmp_equal(tensor.shape.size(), input.rank);
    for (int axis = 0; matches && axis < input.rank; ++axis) {
      const Dim& dim = tensor.shape[static_cast<std::size_t>(axis)];
      // The columns of a GPU's block tables are a constant in its kernels' arguments, so they must equal the bound.
      const bool is_bound = axis > 0 && dim.value == plan_.symbols[input.shape[axis]];
      matches = dim.symbol == input.shape[axis] || is_bound;
    }
    if (!matches) fail(tensor, "expected int32 with the shape of the step input of this name");
    expect_no_offset(tensor);
  }

  // Throws unless the tensor has rows of activations or of bytes, as many as `symbol` says.
  void check_rows(const PlanTensor& tensor, Symbol symbol) const {
    const std::int64_t bytes = manifest_.target.kind == TargetKind::kCpu ? 4 : 2;  // bytes of an element of activations
    const bool is_row_dtype = std::ranges::find(kRowDTypes, tensor.dtype) != std::end(kRowDTypes);
    const bool has_dtype = is_row_dtype && (tensor.dtype == DType::kUint8 || item_size(tensor.dtype) == bytes);
    const bool has_shape = tensor.shape.size() == 2 && tensor.shape[0].symbol == symbol && !tensor.shape[1].symbol &&
                           tensor.shape[1].value > 0;
    if (!has_dtype || !has_shape) {
      fail(tensor, "expected rows of floats of " + std::to_string(8 * bytes) +
                       " bits, or of uint8, with the shape of the step input");
    }
    expect_no_offset(tensor);
  }

  // Throws unless the tensor lies inside the arena or the state.
  void check_place(const PlanTensor& tensor, std::int64_t memory_bytes) const {
    for (const Dim& dim : tensor.shape) {
      // The numbers of blocks and adapters are chosen when an executor is made, so the size of static tensors cannot
      // depend on them.
      if (is_chosen(dim)) fail(tensor, "expected a shape without num_blocks and num_loras");
    }
    const std::int64_t alignment = manifest_.target.kind == TargetKind::kCpu ? kAlignment : kDeviceAlignment;
    if (tensor.offset % alignment != 0) {
      fail(tensor, "expected an offset that is a multiple of " + std::to_string(alignment));
    }
    const std::int64_t bytes = max_bytes(plan_, tensor);
    if (bytes > memory_bytes || tensor.offset > memory_bytes - bytes) {
      fail(tensor, "expected to lie inside the " + std::string(to_string(tensor.kind)) + " of " +
                       std::to_string(memory_bytes) + " bytes, found " + std::to_string(bytes) + " bytes at " +
                       std::to_string(tensor.offset));
    }
  }

  void check_cache(const PlanTensor& tensor) const {
    if (tensor.name == kFeatures) return check_features(tensor);  // check_ports looks at its shape
    const DType dtype = tensor.dtype;
    const bool is_known = is_float(dtype) || dtype == DType::kFloat8E4m3fn || dtype == DType::kInt8;
    const bool is_paged = is_known && tensor.shape.size() >= 2 && tensor.shape[0].symbol == Symbol::kNumBlocks &&
                          all_integers(std::span(tensor.shape).subspan(1));
    if (!is_paged) fail(tensor, "expected numbers of a type that caches have, [num_blocks, integers…]");
    if (tensor.offset % item_size(dtype) != 0) fail(tensor, "expected a place in blocks at a multiple of an element");
    std::vector<std::int64_t> extents;
    for (const Dim& dim : std::span(tensor.shape).subspan(1)) extents.push_back(dim.value);
    const std::int64_t elements = product(1, extents);
    const auto found = kept_.find(tensor.name);
    if (found == kept_.end()) fail(tensor, "expected the name of a cache of the manifest's groups");
    const auto& [number, cache] = found->second;
    const CacheGroup& group = manifest_.kv_cache.groups[static_cast<std::size_t>(number)];
    const bool is_state = group.kind == CacheKindName::kState;
    const std::int64_t expected = product(is_state ? 1 : manifest_.kv_cache.tokens_per_block, cache->shape);
    if (cache->dtype == dtype && elements == expected && elements > 0) return;
    fail(tensor, "expected what the manifest says that " + group.name + " keeps of " +
                     (is_state ? "a sequence" : "tokens_per_block tokens") + " under this name");
  }

  // `first` times all extents; 0 if that is too large a number.
  static std::int64_t product(std::int64_t first, std::span<const std::int64_t> extents) {
    for (const std::int64_t extent : extents) {
      if (__builtin_mul_overflow(first, extent, &first)) return 0;
    }
    return first;
  }

  void check_adapter(const PlanTensor& tensor) const {
    if (manifest_.target.kind != TargetKind::kCuda) fail(tensor, "expected adapter slots on GPUs only");
    const bool is_known = is_float(tensor.dtype) || tensor.dtype == DType::kInt32;
    const bool matches = is_known && tensor.shape.size() >= 2 && tensor.shape[0].symbol == Symbol::kNumLoras &&
                         all_integers(std::span(tensor.shape).subspan(1));
    if (!matches) fail(tensor, "expected floating-point numbers or int32 [num_loras, integers…]");
    std::vector<std::int64_t> extents;
    for (const Dim& dim : std::span(tensor.shape).subspan(1)) extents.push_back(dim.value);
    const std::int64_t bytes = product(item_size(tensor.dtype), extents);
    const std::int64_t slot_bytes = kAdapterUnit * plan_.symbols[Symbol::kAdapterStride];
    if (tensor.offset % kAdapterUnit != 0 || bytes > slot_bytes || tensor.offset > slot_bytes - bytes) {
      fail(tensor, "expected a place in a slot of " + std::to_string(slot_bytes) +
                       " bytes (adapter_stride), at a multiple of " + std::to_string(kAdapterUnit));
    }
  }

  void check_features(const PlanTensor& tensor) const {
    const std::int64_t bytes = manifest_.target.kind == TargetKind::kCpu ? 4 : 2;  // bytes of an element of activations
    const bool matches = is_float(tensor.dtype) && item_size(tensor.dtype) == bytes && tensor.shape.size() == 3 &&
                         tensor.shape[0].symbol == Symbol::kNumBlocks;
    if (!matches) {
      fail(tensor, "expected floats of " + std::to_string(8 * bytes) + " bits [num_blocks, tokens_per_block, size]");
    }
    expect_no_offset(tensor);
  }

  void check_weight(const PlanTensor& tensor) const {
    if (!all_integers(tensor.shape)) fail(tensor, "expected a shape of integers");
    const bool is_index = tensor.dtype == DType::kInt32;
    if (!is_float(tensor.dtype) && !is_index && !kIsScaled[static_cast<int>(tensor.dtype)])
      fail(tensor, "expected a dtype that weights have");
    const bool is_cpu = manifest_.target.kind == TargetKind::kCpu;
    const bool has_panels = tensor.layout == Layout::kPanel64 || tensor.layout == Layout::kGatedPanel64;
    const bool is_plain = tensor.layout == Layout::kRowMajor;
    if (!is_plain && has_panels != is_cpu) fail(tensor, "expected a layout that its device uses");
    std::vector<std::int64_t> logical;
    for (const Dim& dim : tensor.shape) logical.push_back(dim.value);
    const std::vector<std::int64_t> stored = stored_shape(tensor.layout, tensor.dtype, logical);
    if (stored.empty()) fail(tensor, "expected a shape that its layout can hold");
    if (manifest_.stripped) return;
    const Entry& entry = container_.at("weights." + tensor.name);
    const std::string_view dtype = kStoredNames[static_cast<int>(tensor.dtype)];
    if (entry.dtype != dtype) {
      fail(tensor, "expected an entry of dtype " + std::string(dtype) + ", found " + entry.dtype);
    }
    if (entry.shape != stored) fail(tensor, "expected an entry of the shape in which its layout is stored");
    if (entry.offset % kAlignment != 0)
      fail(tensor, "expected an entry at a multiple of " + std::to_string(kAlignment));
    if (entry.offset != tensor.offset) {
      fail(tensor, "expected the offset of its entry, " + std::to_string(entry.offset) + ", found " +
                       std::to_string(tensor.offset));
    }
  }

  void expect_no_offset(const PlanTensor& tensor) const {
    if (tensor.offset != 0) fail(tensor, "expected offset 0, found " + std::to_string(tensor.offset));
  }

  const Plan& plan_;
  const Manifest& manifest_;
  const Container& container_;
  const KeptCaches& kept_;
};

}  // namespace

void check_tensors(const Plan& plan, const Manifest& manifest, const Container& container, const KeptCaches& kept) {
  TensorChecker checker(plan, manifest, container, kept);
  std::set<std::string_view> names;
  for (const PlanTensor& tensor : plan.tensors) {
    checker.check(tensor);
    // Programs and layers may have arena tensors of the same name at several places.
    if (tensor.kind == TensorKind::kArena || names.insert(tensor.name).second) continue;
    fail(tensor, "expected a name that no other weight, cache, input or state has");
  }
}

std::int64_t max_bytes(const Plan& plan, const PlanTensor& tensor) { return max_bytes(plan.symbols, tensor); }

std::int64_t max_bytes(const Extents& bounds, const PlanTensor& tensor) {
  std::int64_t bytes = item_size(tensor.dtype);
  const std::int64_t per_item = elements_per_item(tensor.dtype);
  for (const Dim& dim : tensor.shape) {
    if (is_chosen(dim)) continue;
    std::int64_t extent = dim.symbol ? bounds[*dim.symbol] : dim.value;
    if (&dim == &tensor.shape.back() && per_item > 1) {
      if (extent % per_item != 0) fail(tensor, "expected rows of whole bytes");
      extent /= per_item;
    }
    if (extent == 0) fail(tensor, "expected a bound for " + to_string(dim) + ", found none");
    if (__builtin_mul_overflow(bytes, extent, &bytes) || bytes > kMaxBytes) {
      fail(tensor, "expected a size of at most 2^50 bytes");
    }
  }
  return bytes;
}

}  // namespace tl
