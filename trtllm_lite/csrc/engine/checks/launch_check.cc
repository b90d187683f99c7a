#include "engine/checks/launch_check.h"

#include <algorithm>
#include <limits>
#include <string>

#include "engine/checks/plan_check.h"
#include "errors.h"

namespace tl {
namespace {

constexpr std::int64_t kMaxGrid[] = {std::numeric_limits<std::int32_t>::max(), 65535, 65535};
constexpr std::int64_t kChunkBytes = 16;    // the unit that the copy engine addresses
constexpr std::int64_t kMaxBoxBytes = 128;  // the width of a swizzled box

// The largest extents of the steps that a program may run.
Extents bounds_of(const Plan& plan, const Program& program) {
  Extents bounds = plan.symbols;
  for (const Symbol symbol : {Symbol::kNumTokens, Symbol::kNumSeqs, Symbol::kNumDecodeSeqs, Symbol::kNumPrefillSeqs,
                              Symbol::kNumPrefillTokens, Symbol::kNumLogits, Symbol::kNumTokenRows,
                              Symbol::kNumImageRows, Symbol::kNumAdapterTokens, Symbol::kNumAdapterLogits}) {
    bounds[symbol] = std::min(bounds[symbol], program.max_tokens);
  }
  bounds[Symbol::kNumSeqsPlus1] = std::min(bounds[Symbol::kNumSeqsPlus1], program.max_tokens + 1);
  if (program.decode_only) bounds[Symbol::kNumPrefillSeqs] = bounds[Symbol::kNumPrefillTokens] = 0;
  return bounds;
}

// Whether a step without prefill rows skips the launch.
bool needs_prefill(const LaunchInstruction& launch) {
  return std::ranges::any_of(launch.grid, [](const ExtentExpr& extent) {
    return extent.constant == 0 && !extent.terms.empty() && std::ranges::all_of(extent.terms, [](const auto& term) {
             return term.symbol == Symbol::kNumPrefillSeqs || term.symbol == Symbol::kNumPrefillTokens;
           });
  });
}

// Checks one program; `where_` names the current instruction.
class ProgramChecker {
 public:
  ProgramChecker(const Plan& plan, const Manifest& manifest, const Program& program)
      : plan_(plan), manifest_(manifest), program_(program), bounds_(bounds_of(plan, program)) {}

  void check() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      where_ = "program " + program_.name + " for " + program_.arch + ", instruction " + std::to_string(i);
      const Instruction& instruction = program_.instructions[i];
      bounds_ = bounds_of(plan_, program_);
      if (const auto* launch = std::get_if<LaunchInstruction>(&instruction)) {
        check_launch(*launch);
      } else if (const auto* matmul = std::get_if<MatmulInstruction>(&instruction)) {
        check_matmul(*matmul);
      } else if (const auto* collective = std::get_if<CollectiveInstruction>(&instruction)) {
        check_collective(*collective);
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw EngineError("plan: " + where_ + ": " + message); }

  const PlanTensor& tensor(int index) const { return plan_.tensors[static_cast<std::size_t>(index)]; }

  // The value of an expression in the largest step.
  std::int64_t bound_of(const ExtentExpr& extent) const {
    const std::optional<std::int64_t> bound = extent.bound_at(bounds_);
    if (!bound) fail("expected numbers of at most 2^50, found a larger one");
    return *bound;
  }

  // Checks that `bytes` from the pointer on are inside its tensor.
  void check_pointer(const TensorArgument& pointer, std::int64_t bytes) const {
    const std::int64_t offset = bound_of(pointer.offset), size = max_bytes(plan_, tensor(pointer.tensor));
    if (bytes <= size && offset <= size - bytes) return;
    fail("expected " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " to lie inside tensor " +
         tensor(pointer.tensor).name + " of " + std::to_string(size) + " bytes");
  }

  std::int64_t matrix_bytes(std::int64_t rows, std::int64_t columns, DType dtype) const {
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, item_size(dtype), &bytes)) {
      fail("expected matrices whose sizes fit in 64 bits");
    }
    return bytes;
  }

  void check_launch(const LaunchInstruction& launch) {
    // The launch runs only with at least one prefill row, so pointers past all decode rows stay inside.
    std::int64_t& num_decode_seqs = bounds_[Symbol::kNumDecodeSeqs];
    if (needs_prefill(launch)) num_decode_seqs = std::min(num_decode_seqs, bounds_[Symbol::kNumSeqs] - 1);
    for (std::size_t axis = 0; axis < launch.grid.size(); ++axis) {
      const std::int64_t extent = bound_of(launch.grid[axis]);
      if (extent > kMaxGrid[axis]) {
        fail("expected a grid of at most 2147483647 × 65535 × 65535 blocks, found " + std::to_string(extent));
      }
    }
    if (parameter_bytes(launch) > kMaxParameterBytes) fail("expected at most 4096 bytes of arguments");
    for (const LaunchArgument& argument : launch.args) check_argument(argument);
    if (!plan_.kernels[static_cast<std::size_t>(launch.kernel)].cubins.contains(program_.arch)) {
      fail("expected a kernel compiled for the program's architecture");
    }
  }

  void check_argument(const LaunchArgument& argument) const {
    if (const auto* pointer = std::get_if<TensorArgument>(&argument)) check_pointer(*pointer, 0);
    if (const auto* map = std::get_if<TensorMapArgument>(&argument)) check_tensor_map(map->tensor_map);
    const auto* integer = std::get_if<IntArgument>(&argument);
    if (integer != nullptr && bound_of(integer->value) > std::numeric_limits<std::int32_t>::max()) {
      fail("expected an int argument that fits in 32 bits, found " + std::to_string(bound_of(integer->value)));
    }
  }

  void check_tensor_map(const BoxedTensor& map) const {
    const PlanTensor& source = tensor(map.tensor);
    // Addresses in tensor maps are fixed when the engine is loaded.
    if (source.kind != TensorKind::kArena && source.kind != TensorKind::kWeight) {
      fail("expected a tensor map of an arena or weight tensor, found " + source.name);
    }
    const std::int64_t size = item_size(source.dtype);
    if (size > 2) fail("expected a tensor map of elements of one or two bytes, found " + source.name);
    for (const std::int64_t bytes : {map.offset, size * map.columns, size * map.box_columns}) {
      if (bytes % kChunkBytes == 0) continue;
      fail("expected a tensor map whose offset, rows and boxes are multiples of 16 bytes, found " +
           std::to_string(bytes));
    }
    if (size * map.box_columns > kMaxBoxBytes) {
      fail("expected a tensor map whose boxes are at most " + std::to_string(kMaxBoxBytes) + " bytes wide, found " +
           std::to_string(size * map.box_columns));
    }
    check_pointer({map.tensor, {map.offset, {}}}, matrix_bytes(map.rows, map.columns, source.dtype));
  }

  void check_matrix(const TensorArgument& pointer, std::int64_t rows, std::int64_t columns, DType dtype) const {
    const PlanTensor& matrix = tensor(pointer.tensor);
    if (matrix.dtype != dtype) {
      fail("expected tensor " + matrix.name + " to be " + std::string(to_string(dtype)) + ", found " +
           std::string(to_string(matrix.dtype)));
    }
    check_pointer(pointer, matrix_bytes(rows, columns, dtype));
  }

  void check_written(const TensorArgument& pointer) const {
    if (tensor(pointer.tensor).kind != TensorKind::kArena)
      fail("expected an instruction that writes to an arena tensor");
  }

  // The rows of a product or collective in the largest step. Executors prepare products for steps of up to max_tokens
  // rows.
  std::int64_t rows_of(const ExtentExpr& extent) const {
    const std::int64_t rows = bound_of(extent);
    if (rows > program_.max_tokens) {
      fail("expected at most " + std::to_string(program_.max_tokens) + " rows, the program's max_tokens, found " +
           std::to_string(rows));
    }
    return rows;
  }

  void check_matmul(const MatmulInstruction& matmul) const {
    const bool known = matmul.dtype == DType::kBFloat16 || matmul.dtype == DType::kFloat16;
    if (!known || (matmul.out_dtype != matmul.dtype && matmul.out_dtype != DType::kFloat32)) {
      fail("expected dtype bfloat16 or float16, and out_dtype the same or float32");
    }
    const std::int64_t rows = rows_of(matmul.rows);
    check_matrix(matmul.x, rows, matmul.in_features, matmul.dtype);
    check_matrix(matmul.weight, matmul.out_features, matmul.in_features, matmul.dtype);
    check_matrix(matmul.y, rows, matmul.out_features, matmul.out_dtype);
    if (matmul.bias) check_matrix(*matmul.bias, 1, matmul.out_features, matmul.out_dtype);
    if (matmul.residual) check_matrix(*matmul.residual, rows, matmul.out_features, matmul.out_dtype);
    check_written(matmul.y);
    std::int64_t covered = 0;
    for (const TimedAlgorithm& algorithm : matmul.algorithms) {
      if (algorithm.max_rows <= covered) fail("expected algorithms whose max_rows ascend");
      covered = algorithm.max_rows;
    }
  }

  void check_collective(const CollectiveInstruction& collective) const {
    const bool gathers = collective.op == CollectiveOp::kAllGatherRows;
    if (manifest_.allreduce_strategy != AllreduceStrategy::kNccl) fail("expected ranks that communicate by NCCL");
    if (!gathers && collective.op != CollectiveOp::kAllReduce) fail("expected a collective of GPUs");
    if (collective.x_features != collective.y_features) fail("expected x and y with rows of equal size");
    const std::int64_t rows = rows_of(collective.rows);
    check_matrix(collective.x, rows, collective.x_features, collective.dtype);
    check_matrix(collective.y, gathers ? rows * manifest_.mapping.tp_size : rows, collective.y_features,
                 collective.dtype);
    check_written(collective.y);
  }

  const Plan& plan_;
  const Manifest& manifest_;
  const Program& program_;
  Extents bounds_;  // for the current instruction
  std::string where_;
};

}  // namespace

std::int64_t parameter_bytes(const LaunchInstruction& launch) {
  std::int64_t bytes = 0;
  for (const LaunchArgument& argument : launch.args) {
    const bool is_pointer =
        std::holds_alternative<TensorArgument>(argument) || std::holds_alternative<std::monostate>(argument);
    const bool is_map = std::holds_alternative<TensorMapArgument>(argument);
    const ParameterSize size = is_pointer ? kPointerSize : is_map ? kTensorMapSize : kScalarSize;
    bytes = (bytes + size.alignment - 1) / size.alignment * size.alignment + size.bytes;
  }
  return bytes;
}

void check_launches(const Plan& plan, const Manifest& manifest, const Container& container) {
  for (const CompiledKernel& kernel : plan.kernels) {
    for (const auto& [arch, key] : kernel.cubins) {
      if (container.at("cubin." + key).dtype == "U8") continue;
      throw EngineError("plan: kernel " + kernel.name + ": expected cubins of dtype U8");
    }
  }
  for (const Program& program : plan.programs) ProgramChecker(plan, manifest, program).check();
}

}  // namespace tl
