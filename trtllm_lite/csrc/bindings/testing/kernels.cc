// run_kernel and time_kernel, which let tests and benchmarks call a kernel without an engine.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>

#include "bindings/testing/testing.h"
#include "cpu/cache_sweep.h"
#include "cpu/kernel_registry.h"
#include "engine/checks/call_check.h"
#include "errors.h"
#include "host/cpu_count.h"
#include "host/thread_pool.h"

namespace nb = nanobind;

namespace tl {
namespace {

using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Arrays = std::vector<std::optional<Array>>;
using Attributes = nb::typed<nb::dict, nb::str, std::variant<double, std::string>>;
using Names = std::optional<std::vector<std::string>>;

// `name` selects among types with equal bits; if it is empty, the first is taken.
DType dtype_of(const Array& array, std::string_view name) {
  if (array.dtype() == nb::dtype<float>()) return DType::kFloat32;
  if (array.dtype() == nb::dtype<std::int32_t>()) return DType::kInt32;
  if (array.dtype() == nb::dtype<std::int64_t>()) return DType::kInt64;
  if (array.dtype() == nb::dtype<std::int8_t>()) return DType::kInt8;
  if (array.dtype() == nb::dtype<std::uint16_t>()) return DType::kBFloat16;
  if (array.dtype() == nb::dtype<std::uint8_t>()) {
    if (name == "int4") return DType::kInt4;
    if (name == "uint4") return DType::kUint4;
    return name == "float4_e2m1fn" ? DType::kFloat4E2m1fn : DType::kFloat8E4m3fn;
  }
  if (array.dtype().code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && array.dtype().bits == 16) {
    return DType::kFloat16;
  }
  throw EngineError(
      "run_kernel: expected arrays of float32, float16, int64, int32 or int8, or the bits of bfloat16 as uint16, or of "
      "float8_e4m3fn, int4, uint4 or float4_e2m1fn as uint8");
}

// The inputs or outputs of a call: logical descriptions for the schema check, pointers for the kernel.
class Operands {
 public:
  Operands(const Arrays& arrays, const Names& layouts, const Names& dtypes) : arrays_(arrays) {
    if ((layouts && layouts->size() != arrays.size()) || (dtypes && dtypes->size() != arrays.size())) {
      throw EngineError("run_kernel: expected as many layouts and dtypes as inputs");
    }
    logical_.resize(arrays.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (!arrays[i]) continue;
      logical_[i].dtype = dtype_of(*arrays[i], dtypes ? (*dtypes)[i] : "");
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
  void read_row_major(std::span<const ArgumentSpec> specs, std::map<int, std::int64_t>* extents) {
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

  // A packed operand is padded, so its logical extent comes from other operands; otherwise its full extent counts.
  void read_packed(std::span<const ArgumentSpec> specs, const std::map<int, std::int64_t>& extents) {
    for (std::size_t i = 0; i < std::min(arrays_.size(), specs.size()); ++i) {
      if (!arrays_[i] || logical_[i].layout == Layout::kRowMajor) continue;
      const bool gated = logical_[i].layout == Layout::kGatedPanel64;
      const Array& array = *arrays_[i];
      const int own_rank = gated ? 3 : 2;  // one more axis in front: experts
      const std::size_t front = specs[i].rank > own_rank ? 1 : 0;
      if (array.ndim() != 3 + front || std::cmp_not_equal(specs[i].rank, own_rank + front)) {
        throw EngineError("run_kernel: a packed input has shape [panels, in_features, 64]");
      }
      const auto known = extents.find(specs[i].shape[specs[i].rank - 2].symbol);
      const auto panels = static_cast<std::int64_t>(array.shape(front));
      const std::int64_t rows = known != extents.end() ? known->second : panels * (gated ? 32 : 64);
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
  const Arrays& arrays_;
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

std::vector<AttributeValue> read_attributes(const OpSchema& schema, const Attributes& attributes,
                                            AttributeTexts* texts) {
  if (attributes.size() != schema.attributes.size()) {
    throw EngineError("run_kernel: expected " + std::to_string(schema.attributes.size()) + " attributes");
  }
  std::vector<AttributeValue> values;
  for (const AttributeSpec& spec : schema.attributes) {
    const nb::str name(spec.name.data(), spec.name.size());
    if (!attributes.contains(name)) throw EngineError("run_kernel: missing attribute " + std::string(spec.name));
    values.push_back(read_attribute(spec, attributes[name], texts));
  }
  return values;
}

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// The adapter of each token: A and B for each projection, or neither.
using Adapters = std::vector<std::vector<std::optional<std::pair<Matrix, Matrix>>>>;

std::vector<std::vector<LowRankPart>> parts_of(const Adapters& adapters) {
  std::vector<std::vector<LowRankPart>> result(adapters.size());
  for (std::size_t token = 0; token < adapters.size(); ++token) {
    for (const auto& pair : adapters[token]) {
      LowRankPart& part = result[token].emplace_back();
      if (pair) part = {pair->first.data(), pair->second.data(), static_cast<std::int64_t>(pair->first.shape(0))};
    }
  }
  return result;
}

// A call that has passed the schema check; the arrays must outlive it.
struct PreparedCall {
  Kernel kernel;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::vector<AttributeValue> attributes;
  AttributeTexts texts;

  DType product_dtype;

  void run(ThreadPool* pool, const LowRankPart* const* adapters = nullptr) const {
    kernel({inputs.data(), outputs.data(), attributes.data(), pool, product_dtype, adapters});
  }
};

PreparedCall prepare(std::string_view op, const Arrays& inputs, const Arrays& outputs, const Attributes& attributes,
                     const Names& layouts, const Names& dtypes, std::string_view isa, std::string_view product_dtype) {
  const OpSchema* schema = find_op(op);
  if (schema == nullptr) throw EngineError("run_kernel: unknown operator " + std::string(op));
  const Kernel kernel = find_kernel(op, resolve_isa(isa));
  Operands in(inputs, layouts, dtypes);
  Operands out(outputs, std::nullopt, std::nullopt);
  std::map<int, std::int64_t> extents;
  in.read_row_major(schema->inputs, &extents);
  out.read_row_major(schema->outputs, &extents);
  in.read_packed(schema->inputs, extents);
  AttributeTexts texts;
  const std::vector<AttributeValue> values = read_attributes(*schema, attributes, &texts);
  check_call(*schema, in.described(), out.described(), values, {});
  const auto product = std::ranges::find(kDTypeNames, product_dtype);
  if (product == std::end(kDTypeNames)) throw EngineError("run_kernel: unknown dtype " + std::string(product_dtype));
  return {kernel, in.tensors(), out.tensors(), values, texts, static_cast<DType>(product - std::begin(kDTypeNames))};
}

void run_kernel(std::string_view op, const Arrays& inputs, const Arrays& outputs, const Attributes& attributes,
                const Names& layouts, const Names& dtypes, std::string_view isa, int num_threads,
                std::string_view product_dtype, const Adapters& adapters) {
  const PreparedCall call = prepare(op, inputs, outputs, attributes, layouts, dtypes, isa, product_dtype);
  const std::vector<std::vector<LowRankPart>> parts = parts_of(adapters);
  std::vector<const LowRankPart*> of_tokens;
  for (const auto& adapter : parts) of_tokens.push_back(adapter.empty() ? nullptr : adapter.data());
  nb::gil_scoped_release release;
  ThreadPool pool(resolve_num_threads(num_threads));
  call.run(&pool, of_tokens.empty() ? nullptr : of_tokens.data());
}

// The seconds of each of `repeats` calls. Before each, sweep_bytes of other memory are read.
std::vector<double> time_kernel(std::string_view op, const Arrays& inputs, const Arrays& outputs,
                                const Attributes& attributes, const Names& layouts, const Names& dtypes,
                                std::string_view isa, int num_threads, std::string_view product_dtype, int repeats,
                                std::size_t sweep_bytes) {
  const PreparedCall call = prepare(op, inputs, outputs, attributes, layouts, dtypes, isa, product_dtype);
  nb::gil_scoped_release release;
  ThreadPool pool(resolve_num_threads(num_threads));
  CacheSweep sweep(sweep_bytes);
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    sweep.read(&pool);
    const auto start = std::chrono::steady_clock::now();
    call.run(&pool);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return seconds;
}

std::vector<std::string> isa_names() {
  const std::vector<std::string_view> names = supported_isas();
  return {names.begin(), names.end()};
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def("supported_isas", &isa_names,
             "Instruction sets that this build has kernels for and this machine can execute, best first.");
  module.def("run_kernel", &run_kernel, nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("attributes"),
             nb::arg("layouts") = nb::none(), nb::arg("dtypes") = nb::none(), nb::arg("isa") = "auto",
             nb::arg("num_threads") = 0, nb::arg("product_dtype") = "float32", nb::arg("adapters") = Adapters(), R"(
                 Run one kernel on arrays after the engine's schema check; outputs are written in place. For tests.

                 ``layouts`` and ``dtypes`` are per input; bfloat16 arrays come as uint16. A packed weight's logical
                 extent is taken from the other operands, or else its padding counts. Values of int32 inputs are not
                 checked. ``product_dtype`` is the type to which activations may be rounded before they are
                 multiplied: ``float32``, which changes nothing, or ``bfloat16``. ``adapters`` has for each token A
                 and the transposed B of each projection, or nothing.)");
  module.def("time_kernel", &time_kernel, nb::arg("op"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("attributes"),
             nb::arg("layouts") = nb::none(), nb::arg("dtypes") = nb::none(), nb::arg("isa") = "auto",
             nb::arg("num_threads") = 0, nb::arg("product_dtype") = "float32", nb::kw_only(), nb::arg("repeats"),
             nb::arg("sweep_bytes"), R"(
                 Seconds of each of ``repeats`` runs of a kernel, each after ``sweep_bytes`` of other memory have been
                 read.)");
}

}  // namespace tl
