// A call of a kernel on arrays, without an engine.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "cpu/kernel_registry.h"
#include "engine/checks/call_check.h"

namespace tl {

using KernelArray = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;
using KernelArrays = std::vector<std::optional<KernelArray>>;
using KernelAttributes = nanobind::typed<nanobind::dict, nanobind::str, std::variant<double, std::string>>;
using OperandNames = std::optional<std::vector<std::string>>;

// A call that has passed the schema check; the arrays must outlive it.
struct KernelCall {
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

// Throws EngineError for a call that the schema does not allow.
KernelCall prepare_call(std::string_view op, const KernelArrays& inputs, const KernelArrays& outputs,
                        const KernelAttributes& attributes, const OperandNames& layouts, const OperandNames& dtypes,
                        std::string_view isa, std::string_view product_dtype);

}  // namespace tl
