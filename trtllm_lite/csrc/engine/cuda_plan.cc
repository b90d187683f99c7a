#include "engine/cuda_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "engine/json_reader.h"
#include "engine/op_schema.h"

namespace tl {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::size_t kMaxNameLength = 512;
constexpr std::size_t kMaxShapeRank = 8;
constexpr std::size_t kMaxTerms = 8;
constexpr std::int64_t kMaxThreads = 1024;
constexpr std::int64_t kMaxSharedBytes = 1 << 20;
constexpr std::int64_t kMaxBoxRows = 256, kMaxBoxColumns = 64;  // a row of a box is what is swizzled: 128 bytes
constexpr std::string_view kDTypeNames[] = {"float32", "float16", "bfloat16", "int32", "uint8"};
constexpr std::string_view kKindNames[] = {"arena", "weight", "cache", "input", "state"};

template <typename Enum, typename Range>
Enum read_enum(const JsonView& json, const Range& names, const char* expected) {
  const auto found = std::ranges::find(names, json.string());
  if (found == std::end(names)) json.fail(expected);
  return static_cast<Enum>(found - std::begin(names));
}

std::string read_name(const JsonView& json) {
  const std::string& name = json.string();
  if (name.empty() || name.size() > kMaxNameLength) json.fail("1 to " + std::to_string(kMaxNameLength) + " bytes");
  return name;
}

CudaSymbol read_symbol(const JsonView& json) {
  return read_enum<CudaSymbol>(json, kCudaSymbolNames, "a symbol of the step");
}

CudaExtents read_bounds(const JsonView& json) {
  CudaExtents bounds;
  for (int symbol = 0; symbol < kNumCudaSymbols; ++symbol) {
    bounds[static_cast<CudaSymbol>(symbol)] = json.at(std::string(kCudaSymbolNames[symbol])).integer(1, kMaxExtent - 1);
  }
  if (json.members().size() != kNumCudaSymbols) json.fail("no symbols but those of a step");
  return bounds;
}

ExtentExpr read_extent(const JsonView& json) {
  if (json.is_integer()) return {json.integer(0, kMaxBytes), {}};
  json.expect_keys({"const", "terms"});
  ExtentExpr extent{json.at("const").integer(0, kMaxBytes), {}};
  const std::vector<JsonView> terms = json.at("terms").elements();
  if (terms.size() > kMaxTerms) json.at("terms").fail("at most " + std::to_string(kMaxTerms) + " terms");
  for (const JsonView& term : terms) {
    const std::vector<JsonView> parts = term.elements();
    if (parts.size() != 3) term.fail("a symbol, a multiplier and a divisor");
    extent.terms.push_back(
        {read_symbol(parts[0]), parts[1].integer(0, kMaxExtent - 1), parts[2].integer(1, kMaxExtent - 1)});
  }
  return extent;
}

CudaDType read_dtype(const JsonView& json) { return read_enum<CudaDType>(json, kDTypeNames, "a dtype"); }

CudaTensor read_tensor(const JsonView& json) {
  json.expect_keys({"name", "dtype", "shape", "layout", "kind", "offset"});
  if (json.at("layout").string() != "row_major") json.at("layout").fail("\"row_major\"");
  CudaTensor tensor;
  tensor.name = read_name(json.at("name"));
  tensor.dtype = read_dtype(json.at("dtype"));
  tensor.kind = read_enum<CudaTensorKind>(json.at("kind"), kKindNames, "arena, weight, cache, input or state");
  tensor.offset = json.at("offset").integer(0, kMaxBytes);
  const std::vector<JsonView> shape = json.at("shape").elements();
  if (shape.empty() || shape.size() > kMaxShapeRank) json.at("shape").fail("1 to 8 extents");
  for (const JsonView& dim : shape) {
    if (dim.is_string()) {
      tensor.shape.push_back({0, read_symbol(dim)});
    } else {
      tensor.shape.push_back({dim.integer(1, kMaxExtent - 1), std::nullopt});
    }
  }
  return tensor;
}

int read_index(const JsonView& json, std::size_t size) {
  return static_cast<int>(json.integer(0, static_cast<std::int64_t>(size) - 1));
}

TensorRef read_tensor_ref(const JsonView& json, std::size_t num_tensors) {
  json.expect_keys({"tensor", "offset"});
  return {read_index(json.at("tensor"), num_tensors), read_extent(json.at("offset"))};
}

std::optional<TensorRef> read_optional_ref(const JsonView& json, std::size_t num_tensors) {
  if (json.is_null()) return std::nullopt;
  return read_tensor_ref(json, num_tensors);
}

TensorMapRef read_tensor_map(const JsonView& json, std::size_t num_tensors) {
  json.expect_keys({"tensor", "offset", "rows", "columns", "box_rows", "box_columns"});
  return {.tensor = read_index(json.at("tensor"), num_tensors),
          .offset = json.at("offset").integer(0, kMaxBytes),
          .rows = json.at("rows").integer(1, kMaxExtent - 1),
          .columns = json.at("columns").integer(1, kMaxExtent - 1),
          .box_rows = json.at("box_rows").integer(1, kMaxBoxRows),
          .box_columns = json.at("box_columns").integer(1, kMaxBoxColumns)};
}

LaunchArgument read_argument(const JsonView& json, std::size_t num_tensors) {
  if (json.is_null()) return NullPointer{};
  if (json.has("int")) {
    json.expect_keys({"int"});
    return read_extent(json.at("int"));
  }
  if (json.has("float")) {
    json.expect_keys({"float"});
    const double value = json.at("float").finite_number();
    if (std::abs(value) > std::numeric_limits<float>::max()) json.at("float").fail("a number that float32 can hold");
    return static_cast<float>(value);
  }
  if (json.has("tensor_map")) {
    json.expect_keys({"tensor_map"});
    return read_tensor_map(json.at("tensor_map"), num_tensors);
  }
  return read_tensor_ref(json, num_tensors);
}

LaunchInstruction read_launch(const JsonView& json, const CudaPlan& plan) {
  json.expect_keys({"kind", "kernel", "grid", "args", "programmatic"});
  LaunchInstruction launch;
  launch.kernel = read_index(json.at("kernel"), plan.kernels.size());
  const std::vector<JsonView> grid = json.at("grid").elements();
  if (grid.size() != launch.grid.size()) json.at("grid").fail("3 extents");
  std::ranges::transform(grid, launch.grid.begin(), read_extent);
  for (const JsonView& argument : json.at("args").elements()) {
    launch.arguments.push_back(read_argument(argument, plan.tensors.size()));
  }
  launch.programmatic = json.at("programmatic").boolean();
  return launch;
}

TimedAlgorithm read_algorithm(const JsonView& json) {
  json.expect_keys({"max_rows", "algo"});
  TimedAlgorithm algorithm;
  algorithm.max_rows = json.at("max_rows").integer(1, kMaxExtent - 1);
  const std::string& digits = json.at("algo").string();
  constexpr std::size_t kDigitsPerByte = 2;
  auto* bytes = reinterpret_cast<unsigned char*>(algorithm.data.data());
  bool valid = digits.size() == kDigitsPerByte * sizeof(algorithm.data);
  for (std::size_t i = 0; valid && i < sizeof(algorithm.data); ++i) {
    const char* first = digits.data() + kDigitsPerByte * i;
    valid = std::from_chars(first, first + kDigitsPerByte, bytes[i], 16).ptr == first + kDigitsPerByte;
  }
  if (!valid) json.at("algo").fail("128 hexadecimal digits");
  return algorithm;
}

MatmulInstruction read_matmul(const JsonView& json, const CudaPlan& plan) {
  json.expect_keys({"kind", "x", "weight", "bias", "residual", "y", "rows", "out_features", "in_features", "dtype",
                    "out_dtype", "algorithms"});
  const std::size_t num_tensors = plan.tensors.size();
  MatmulInstruction matmul{
      .x = read_tensor_ref(json.at("x"), num_tensors),
      .weight = read_tensor_ref(json.at("weight"), num_tensors),
      .y = read_tensor_ref(json.at("y"), num_tensors),
      .bias = read_optional_ref(json.at("bias"), num_tensors),
      .residual = read_optional_ref(json.at("residual"), num_tensors),
      .rows = read_extent(json.at("rows")),
      .in_features = json.at("in_features").integer(1, kMaxExtent - 1),
      .out_features = json.at("out_features").integer(1, kMaxExtent - 1),
      .dtype = read_dtype(json.at("dtype")),
      .out_dtype = read_dtype(json.at("out_dtype")),
      .algorithms = {},
  };
  std::int64_t covered = 0;
  for (const JsonView& entry : json.at("algorithms").elements()) {
    matmul.algorithms.push_back(read_algorithm(entry));
    if (matmul.algorithms.back().max_rows <= covered) entry.at("max_rows").fail("more than the entry before it");
    covered = matmul.algorithms.back().max_rows;
  }
  return matmul;
}

CudaInstruction read_instruction(const JsonView& json, const CudaPlan& plan) {
  const std::string& kind = json.at("kind").string();
  if (kind == "launch") return read_launch(json, plan);
  if (kind == "matmul") return read_matmul(json, plan);
  json.at("kind").fail("\"launch\" or \"matmul\"");
}

CudaKernel read_kernel(const JsonView& json) {
  json.expect_keys({"name", "cubins", "threads", "shared_bytes"});
  CudaKernel kernel;
  kernel.name = read_name(json.at("name"));
  for (const auto& [arch, key] : json.at("cubins").members()) kernel.cubins.emplace(arch, read_name(key));
  kernel.threads = static_cast<int>(json.at("threads").integer(1, kMaxThreads));
  kernel.shared_bytes = json.at("shared_bytes").integer(0, kMaxSharedBytes);
  return kernel;
}

CudaProgram read_program(const JsonView& json, const CudaPlan& plan) {
  json.expect_keys({"name", "arch", "decode_only", "max_tokens", "instructions"});
  CudaProgram program;
  program.name = read_name(json.at("name"));
  program.arch = read_name(json.at("arch"));
  program.decode_only = json.at("decode_only").boolean();
  program.max_tokens = json.at("max_tokens").integer(1, kMaxExtent - 1);
  for (const JsonView& instruction : json.at("instructions").elements()) {
    program.instructions.push_back(read_instruction(instruction, plan));
  }
  return program;
}

}  // namespace

std::string_view to_string(CudaDType dtype) { return kDTypeNames[static_cast<std::size_t>(dtype)]; }

std::int64_t item_size(CudaDType dtype) {
  switch (dtype) {
    case CudaDType::kFloat32:
    case CudaDType::kInt32:
      return 4;
    case CudaDType::kFloat16:
    case CudaDType::kBFloat16:
      return 2;
    case CudaDType::kUint8:
      return 1;
  }
  return 0;
}

CudaPlan read_cuda_plan(const JsonView& json) {
  json.expect_keys({"symbols", "arena_bytes", "state_bytes", "decode_batches", "workspace_bytes", "cublaslt_version",
                    "tensors", "outputs", "kernels", "programs"});
  CudaPlan plan;
  plan.bounds = read_bounds(json.at("symbols"));
  plan.arena_bytes = json.at("arena_bytes").integer(0, kMaxBytes);
  plan.state_bytes = json.at("state_bytes").integer(0, kMaxBytes);
  for (const JsonView& size : json.at("decode_batches").elements()) {
    plan.decode_batches.push_back(size.integer(1, kMaxExtent));
  }
  plan.workspace_bytes = json.at("workspace_bytes").integer(0, kMaxBytes);
  plan.cublaslt_version = json.at("cublaslt_version").integer(0, kMaxBytes);
  std::set<std::string> names;
  for (const JsonView& json_tensor : json.at("tensors").elements()) {
    const CudaTensor& tensor = plan.tensors.emplace_back(read_tensor(json_tensor));
    // Programs and layers may have arena tensors of one name at several places.
    if (tensor.kind == CudaTensorKind::kArena || names.insert(tensor.name).second) continue;
    json_tensor.at("name").fail("a name that no other weight, cache, input or state has");
  }
  const JsonView outputs = json.at("outputs");
  outputs.expect_keys({"logits", "tokens", "logprobs", "sampling_slots"});
  plan.logits = read_index(outputs.at("logits"), plan.tensors.size());
  plan.tokens = read_index(outputs.at("tokens"), plan.tensors.size());
  plan.logprobs = read_index(outputs.at("logprobs"), plan.tensors.size());
  plan.sampling_slots = read_index(outputs.at("sampling_slots"), plan.tensors.size());
  for (const JsonView& kernel : json.at("kernels").elements()) plan.kernels.push_back(read_kernel(kernel));
  for (const JsonView& program : json.at("programs").elements()) {
    plan.programs.push_back(read_program(program, plan));
  }
  return plan;
}

}  // namespace tl
