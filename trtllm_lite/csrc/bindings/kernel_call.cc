#include "bindings/kernel_call.h"

#include <algorithm>

#include "errors.h"

namespace nb = nanobind;

namespace tl {
namespace {

// `name` selects among types with equal bits; if it is empty, the first is taken.
DType dtype_of_array(const KernelArray& array, std::string_view name) {
  if (array.dtype() == nb::dtype<float>()) return DType::kFloat32;
  if (array.dtype() == nb::dtype<std::int32_t>()) return DType::kInt32;
  if (array.dtype() == nb::dtype<std::int64_t>()) return DType::kInt64;
  if (array.dtype() == nb::dtype<std::int8_t>()) return DType::kInt8;
  if (array.dtype() == nb::dtype<std::uint16_t>()) return DType::kBFloat16;
  if (array.dtype() == nb::dtype<std::uint8_t>()) {
    if (name == "int4") return DType::kInt4;
    if (name == "uint4") return DType::kUint4;
    if (name == "uint8") return DType::kUint8;
    return name == "float4_e2m1fn" ? DType::kFloat4E2m1fn : DType::kFloat8E4m3fn;
  }
  if (array.dtype().code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && array.dtype().bits == 16) {
    return DType::kFloat16;
  }
  throw EngineError(
      "run_kernel: expected arrays of float32, float16, int64, int32 or int8, or the bits of bfloat16 as uint16, or "
      "uint8, also as the bits of float8_e4m3fn, int4, uint4 or float4_e2m1fn");
}

// The extents of a call's symbols, as far as its row-major operands have them.
struct ExtentSearch {
  List<ConstraintSpec> constraints;
  std::span<const AttributeValue> attributes;
  std::map<int, std::int64_t> known = {};

  // The extent of `symbol` if it fills the last of `panels` panels of `width` in part or in whole.
  std::int64_t find(int symbol, std::int64_t panels, std::int64_t width) const {
    if (const auto found = known.find(symbol); found != known.end()) return found->second;
    for (std::int64_t extent = panels * width; extent > (panels - 1) * width; --extent) {
      if (satisfies(symbol, extent)) return extent;
    }
    return panels * width;
  }

 private:
  bool satisfies(int symbol, std::int64_t extent) const {
    std::int64_t extents[kMaxSymbols] = {};
    std::uint32_t present = 1u << symbol;
    for (const auto& [number, value] : known) {
      extents[number] = value;
      present |= 1u << number;
    }
    extents[symbol] = extent;
    return std::ranges::all_of(constraints, [&](const ConstraintSpec& constraint) {
      return (constraint.symbol_mask & ~present) != 0 || constraint.holds(extents, attributes.data());
    });
  }
};

// The inputs or outputs of a call: logical descriptions for the schema check, pointers for the kernel.
class Operands {
 public:
  Operands(const KernelArrays& arrays, const OperandNames& layouts, const OperandNames& dtypes) : arrays_(arrays) {
    if ((layouts && layouts->size() != arrays.size()) || (dtypes && dtypes->size() != arrays.size())) {
      throw EngineError("run_kernel: expected as many layouts and dtypes as inputs");
    }
    logical_.resize(arrays.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (!arrays[i]) continue;
      logical_[i].dtype = dtype_of_array(*arrays[i], dtypes ? (*dtypes)[i] : "");
      if (layouts) {
        const auto layout = std::ranges::find(kLayoutNames, (*layouts)[i]);
        if (layout == std::end(kLayoutNames)) throw EngineError("run_kernel: unknown layout " + (*layouts)[i]);
        logical_[i].layout = static_cast<Layout>(layout - std::begin(kLayoutNames));
      }
      if (dtypes && to_string(logical_[i].dtype) != (*dtypes)[i]) {
        throw EngineError("run_kernel: dtype " + (*dtypes)[i] + " does not describe the array");
      }
      if (arrays[i]->ndim() > kMaxRank) throw EngineError("run_kernel: expected at most 4 axes");
    }
  }

  // Row-major operands have the shape of their array. Records the values of the schema's symbols.
  void read_row_major(const List<ArgumentSpec>& specs, std::map<int, std::int64_t>* extents) {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (!arrays_[i] || logical_[i].layout != Layout::kRowMajor) continue;
      for (std::size_t axis = 0; axis < arrays_[i]->ndim(); ++axis) {
        const bool is_last = axis + 1 == arrays_[i]->ndim();
        const std::int64_t per_item = is_last ? elements_per_item(logical_[i].dtype) : 1;
        const auto extent = static_cast<std::int64_t>(arrays_[i]->shape(axis)) * per_item;
        logical_[i].shape.push_back({extent, std::nullopt});
        if (i < specs.size() && std::cmp_less(axis, specs[i].rank)) {
          extents->emplace(specs[i].shape[axis].symbol, extent);
        }
      }
    }
  }

  // A packed operand is padded, so its logical extent comes from other operands, or is the largest that satisfies the
  // constraints.
  void read_packed(const List<ArgumentSpec>& specs, const ExtentSearch& extents) {
    for (std::size_t i = 0; i < std::min(arrays_.size(), specs.size()); ++i) {
      if (!arrays_[i] || logical_[i].layout == Layout::kRowMajor) continue;
      const bool gated = logical_[i].layout == Layout::kGatedPanel64;
      const KernelArray& array = *arrays_[i];
      const int own_rank = gated ? 3 : 2;  // one more axis in front: experts
      const std::size_t front = specs[i].rank > own_rank ? 1 : 0;
      if (array.ndim() != 3 + front || std::cmp_not_equal(specs[i].rank, own_rank + front)) {
        throw EngineError("run_kernel: a packed input has shape [panels, in_features, 64]");
      }
      const auto panels = static_cast<std::int64_t>(array.shape(front));
      const std::int64_t rows = extents.find(specs[i].shape[specs[i].rank - 2].symbol, panels, gated ? 32 : 64);
      const std::int64_t per_word = elements_per_item(logical_[i].dtype) > 1 ? 8 : 1;
      const auto columns = static_cast<std::int64_t>(array.shape(front + 1)) * per_word;
      std::vector<std::int64_t> shape{rows, columns};
      if (gated) shape.insert(shape.begin(), 2);
      if (front > 0) shape.insert(shape.begin(), static_cast<std::int64_t>(array.shape(0)));
      const std::vector<std::int64_t> stored = stored_shape(logical_[i].layout, logical_[i].dtype, shape);
      if (stored.empty() || stored[front] != panels || !std::cmp_equal(stored[front + 2], array.shape(front + 2))) {
        throw EngineError("run_kernel: a packed input has " + std::to_string(panels) + " panels of rows of " +
                          std::to_string(array.shape(front + 2)) + " items, which do not hold " + std::to_string(rows) +
                          " features");
      }
      for (const std::int64_t extent : shape) logical_[i].shape.push_back({extent, std::nullopt});
    }
  }

  std::vector<const PlanTensor*> described() const {
    std::vector<const PlanTensor*> operands;
    for (std::size_t i = 0; i < arrays_.size(); ++i) operands.push_back(arrays_[i] ? &logical_[i] : nullptr);
    return operands;
  }

  std::vector<Tensor> tensors() const {
    std::vector<Tensor> tensors(arrays_.size());
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      if (!arrays_[i]) continue;
      const auto rank = static_cast<int>(logical_[i].shape.size());
      tensors[i] = {arrays_[i]->data(), logical_[i].dtype, logical_[i].layout, rank, {}};
      for (std::size_t axis = 0; axis < logical_[i].shape.size(); ++axis) {
        tensors[i].shape[axis] = logical_[i].shape[axis].value;
      }
      if (arrays_[i]->ndim() > 0) {
        tensors[i].block_bytes = arrays_[i]->stride(0) * static_cast<std::int64_t>(arrays_[i]->itemsize());
      }
    }
    return tensors;
  }

 private:
  const KernelArrays& arrays_;
  std::vector<PlanTensor> logical_;
};

AttributeValue read_attribute(const AttributeSpec& spec, const nb::handle& given, AttributeTexts* texts) {
  AttributeValue value;
  switch (spec.kind) {
    case AttributeKind::kInt:
      value.i = nb::cast<std::int64_t>(given);
      return value;
    case AttributeKind::kFloat:
      value.f = nb::cast<double>(given);
      return value;
    case AttributeKind::kChoice:
    case AttributeKind::kText:
      break;
  }
  const std::optional<AttributeValue> text = parse_text(spec, nb::cast<std::string>(given), texts);
  if (!text) throw EngineError("run_kernel: " + std::string(spec.name) + ": expected " + expected_text(spec));
  return *text;
}

std::vector<AttributeValue> read_attributes(const OpSchema& schema, const KernelAttributes& attributes,
                                            AttributeTexts* texts) {
  if (attributes.size() != schema.attributes.size()) {
    throw EngineError("run_kernel: expected " + std::to_string(schema.attributes.size()) + " attributes");
  }
  std::vector<AttributeValue> values;
  for (const AttributeSpec& spec : schema.attributes) {
    const nb::str name(spec.name);
    if (!attributes.contains(name)) throw EngineError("run_kernel: missing attribute " + std::string(spec.name));
    values.push_back(read_attribute(spec, attributes[name], texts));
  }
  return values;
}

}  // namespace

KernelCall prepare_call(std::string_view op, const KernelArrays& inputs, const KernelArrays& outputs,
                        const KernelAttributes& attributes, const OperandNames& layouts, const OperandNames& dtypes,
                        std::string_view isa, std::string_view product_dtype) {
  const OpSchema* schema = find_op(op);
  if (schema == nullptr) throw EngineError("run_kernel: unknown operator " + std::string(op));
  const Kernel kernel = find_kernel(op, resolve_isa(isa));
  Operands in(inputs, layouts, dtypes);
  Operands out(outputs, std::nullopt, std::nullopt);
  AttributeTexts texts;
  const std::vector<AttributeValue> values = read_attributes(*schema, attributes, &texts);
  ExtentSearch extents{schema->constraints, values};
  in.read_row_major(schema->inputs, &extents.known);
  out.read_row_major(schema->outputs, &extents.known);
  in.read_packed(schema->inputs, extents);
  check_call(*schema, in.described(), out.described(), values, {});
  const auto product = std::ranges::find(kDTypeNames, product_dtype);
  if (product == std::end(kDTypeNames)) throw EngineError("run_kernel: unknown dtype " + std::string(product_dtype));
  return {kernel, in.tensors(), out.tensors(), values, texts, static_cast<DType>(product - std::begin(kDTypeNames))};
}

}  // namespace tl
