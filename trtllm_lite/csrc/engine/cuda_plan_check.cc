#include "engine/cuda_plan_check.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>

#include "errors.h"
#include "sample/slot.cuh"

namespace tl {
namespace {

// cuBLASLt and the copy engine read faster, or only, from such addresses.
constexpr std::int64_t kDeviceAlignment = 256;
constexpr std::int64_t kMaxGrid[] = {std::numeric_limits<std::int32_t>::max(), 65535, 65535};

[[noreturn]] void fail(const std::string& where, const std::string& message) {
  throw EngineError("plan: " + where + ": " + message);
}

[[noreturn]] void fail(const CudaTensor& tensor, const std::string& message) { fail("tensor " + tensor.name, message); }

std::string name_of(CudaSymbol symbol) { return std::string(kCudaSymbolNames[static_cast<int>(symbol)]); }

void check_bounds(const CudaPlan& plan, const Manifest& manifest) {
  const Limits& limits = manifest.limits;
  const KvCacheConfig& cache = manifest.kv_cache;
  const auto expect = [&plan](CudaSymbol symbol, std::int64_t low, std::int64_t high, const char* why) {
    const std::int64_t found = plan.bounds[symbol];
    if (found >= low && found <= high) return;
    fail("symbols." + name_of(symbol), "expected " + std::to_string(low) +
                                           (high > low ? " to " + std::to_string(high) : "") + ", " + why + ", found " +
                                           std::to_string(found));
  };
  const auto exactly = [&expect](CudaSymbol symbol, std::int64_t value, const char* why) {
    expect(symbol, value, value, why);
  };
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t num_seqs = plan.bounds[CudaSymbol::kNumSeqs];
  const std::int64_t num_tokens = plan.bounds[CudaSymbol::kNumTokens];
  expect(CudaSymbol::kNumTokens, std::max(limits.max_num_tokens, num_seqs), most, "the manifest's max_num_tokens");
  expect(CudaSymbol::kNumSeqs, limits.max_batch_size, most, "the manifest's max_batch_size");
  exactly(CudaSymbol::kNumSeqsPlus1, num_seqs + 1, "one more than num_seqs");
  exactly(CudaSymbol::kNumDecodeSeqs, num_seqs, "num_seqs");
  exactly(CudaSymbol::kNumPrefillSeqs, num_seqs, "num_seqs");
  exactly(CudaSymbol::kNumPrefillTokens, num_tokens, "num_tokens");
  expect(CudaSymbol::kNumLogits, num_seqs, num_tokens, "num_seqs or more, num_tokens or less");
  exactly(CudaSymbol::kMaxBlocksPerSeq, (limits.max_seq_len + cache.tokens_per_block - 1) / cache.tokens_per_block,
          "the blocks of max_seq_len tokens");
  exactly(CudaSymbol::kNumBlocks, cache.num_blocks, "the manifest's num_blocks");
  expect(CudaSymbol::kNumSlots, limits.max_batch_size, most, "max_batch_size or more");
  const std::vector<std::int64_t>& batches = plan.decode_batches;
  const bool ascend = std::ranges::adjacent_find(batches, std::greater_equal()) == batches.end();
  if (ascend && !batches.empty() && batches.back() == num_seqs) return;
  fail("decode_batches", "expected ascending numbers up to num_decode_seqs (" + std::to_string(num_seqs) + ")");
}

bool is_symbol(const CudaTensor& tensor, std::size_t axis, CudaSymbol symbol) {
  return tensor.shape[axis].symbol == symbol;
}

bool all_integers(const CudaTensor& tensor, std::size_t first_axis) {
  return std::ranges::none_of(tensor.shape.begin() + static_cast<std::ptrdiff_t>(first_axis), tensor.shape.end(),
                              [](const CudaDim& dim) { return dim.symbol.has_value(); });
}

void check_input(const CudaPlan& plan, const CudaTensor& tensor) {
  const int index = cuda_step_input_index(tensor.name);
  if (index < 0) fail(tensor, "expected the name of a step input");
  const CudaStepInput& input = kCudaStepInputs[index];
  const bool is_table = index == kCudaBlockTables;
  bool matches = tensor.dtype == input.dtype && is_symbol(tensor, 0, input.extent);
  matches = matches && tensor.shape.size() == (is_table ? 2 : 1);
  if (matches && is_table) matches = tensor.shape[1].value == plan.bounds[CudaSymbol::kMaxBlocksPerSeq];
  if (!matches) fail(tensor, "expected the dtype and shape of the step input of this name");
  if (tensor.offset != 0) fail(tensor, "expected offset 0, found " + std::to_string(tensor.offset));
}

void check_place(const CudaPlan& plan, const CudaTensor& tensor, std::int64_t buffer_bytes, const char* buffer) {
  for (const CudaDim& dim : tensor.shape) {
    // The number of blocks may be chosen when an executor is made, so nothing static can be sized by it.
    if (dim.symbol == CudaSymbol::kNumBlocks) fail(tensor, "expected a shape without num_blocks");
  }
  if (tensor.offset % kDeviceAlignment != 0) fail(tensor, "expected an offset that is a multiple of 256");
  const std::int64_t bytes = max_bytes(plan, tensor);
  if (bytes > buffer_bytes || tensor.offset > buffer_bytes - bytes) {
    fail(tensor, std::string("expected to lie inside the ") + buffer + " of " + std::to_string(buffer_bytes) +
                     " bytes, found " + std::to_string(bytes) + " bytes at " + std::to_string(tensor.offset));
  }
}

void check_cache(const CudaTensor& tensor, const Manifest& manifest) {
  const bool matches = tensor.dtype == manifest.target.dtype && tensor.shape.size() >= 2 &&
                       is_symbol(tensor, 0, CudaSymbol::kNumBlocks) && all_integers(tensor, 1);
  if (!matches) {
    fail(tensor, "expected " + std::string(to_string(manifest.target.dtype)) + " [num_blocks, integers…]");
  }
  if (tensor.offset != 0) fail(tensor, "expected offset 0, found " + std::to_string(tensor.offset));
}

std::string_view safetensors_name(CudaDType dtype) {
  switch (dtype) {
    case CudaDType::kFloat32:
      return "F32";
    case CudaDType::kFloat16:
      return "F16";
    case CudaDType::kBFloat16:
      return "BF16";
    case CudaDType::kInt32:
    case CudaDType::kUint8:
      break;  // weights are floating point
  }
  return "";
}

void check_weight(const CudaTensor& tensor, const Manifest& manifest, const Container& container) {
  if (!all_integers(tensor, 0)) fail(tensor, "expected a shape of integers");
  if (safetensors_name(tensor.dtype).empty()) fail(tensor, "expected a floating-point dtype");
  if (manifest.target.stripped) return;
  const Entry& entry = container.at("weights." + tensor.name);
  if (entry.dtype != safetensors_name(tensor.dtype)) {
    fail(tensor, "expected an entry of dtype " + std::string(to_string(tensor.dtype)) + ", found " + entry.dtype);
  }
  if (!std::ranges::equal(entry.shape, tensor.shape, {}, {}, &CudaDim::value)) {
    fail(tensor, "expected an entry of its shape, found another");
  }
  if (entry.offset != tensor.offset) {
    fail(tensor, "expected the offset of its entry, " + std::to_string(entry.offset) + ", found " +
                     std::to_string(tensor.offset));
  }
}

void check_tensor(const CudaPlan& plan, const CudaTensor& tensor, const Manifest& manifest,
                  const Container& container) {
  max_bytes(plan, tensor);  // no overflow
  switch (tensor.kind) {
    case CudaTensorKind::kInput:
      return check_input(plan, tensor);
    case CudaTensorKind::kArena:
      return check_place(plan, tensor, plan.arena_bytes, "arena");
    case CudaTensorKind::kState:
      return check_place(plan, tensor, plan.state_bytes, "state");
    case CudaTensorKind::kWeight:
      return check_weight(tensor, manifest, container);
    case CudaTensorKind::kCache:
      return check_cache(tensor, manifest);
  }
}

void check_caches(const CudaPlan& plan, const Manifest& manifest) {
  std::int64_t num_caches = 0, bytes_per_block = 0;
  for (const CudaTensor& tensor : plan.tensors) {
    if (tensor.kind != CudaTensorKind::kCache) continue;
    ++num_caches;
    if (__builtin_add_overflow(bytes_per_block, max_bytes(plan, tensor), &bytes_per_block)) {
      fail("tensors", "KV cache sizes overflow");
    }
  }
  const KvCacheConfig& config = manifest.kv_cache;
  if (num_caches == 2 * config.num_layers && bytes_per_block == config.bytes_per_block) return;
  fail("tensors", "expected " + std::to_string(2 * config.num_layers) + " KV caches of " +
                      std::to_string(config.bytes_per_block) + " bytes per block as in the manifest, found " +
                      std::to_string(num_caches) + " of " + std::to_string(bytes_per_block));
}

// int32 [symbol, words].
void check_records(const CudaPlan& plan, int index, CudaTensorKind kind, CudaSymbol symbol, const char* where) {
  const CudaTensor& tensor = plan.tensors[static_cast<std::size_t>(index)];
  const bool matches = tensor.kind == kind && tensor.dtype == CudaDType::kInt32 && tensor.shape.size() == 2 &&
                       is_symbol(tensor, 0, symbol) && all_integers(tensor, 1);
  if (matches) return;
  fail(where, std::string("expected an int32 ") + (kind == CudaTensorKind::kState ? "state" : "arena") + " tensor [" +
                  name_of(symbol) + ", words]");
}

void check_outputs(const CudaPlan& plan, const Manifest& manifest) {
  const CudaTensor& logits = plan.tensors[static_cast<std::size_t>(plan.logits)];
  if (logits.kind != CudaTensorKind::kArena || logits.dtype != CudaDType::kFloat32 || logits.shape.size() != 2 ||
      !is_symbol(logits, 0, CudaSymbol::kNumLogits) || logits.shape[1].value != manifest.vocab_size) {
    fail("outputs.logits", "expected a float32 arena tensor [num_logits, vocab_size]");
  }
  const CudaTensor& tokens = plan.tensors[static_cast<std::size_t>(plan.tokens)];
  if (tokens.kind != CudaTensorKind::kArena || tokens.dtype != CudaDType::kInt32 || tokens.shape.size() != 1 ||
      !is_symbol(tokens, 0, CudaSymbol::kNumLogits)) {
    fail("outputs.tokens", "expected an int32 arena tensor [num_logits]");
  }
  check_records(plan, plan.logprobs, CudaTensorKind::kArena, CudaSymbol::kNumLogits, "outputs.logprobs");
  check_records(plan, plan.sampling_slots, CudaTensorKind::kState, CudaSymbol::kNumSlots, "outputs.sampling_slots");
  constexpr std::int64_t kWord = 4;
  const std::int64_t logprob_words = plan.tensors[static_cast<std::size_t>(plan.logprobs)].shape[1].value;
  const std::int64_t slot_words = plan.tensors[static_cast<std::size_t>(plan.sampling_slots)].shape[1].value;
  if (logprob_words * kWord != sizeof(DrawnLogprobs)) {
    fail("outputs.logprobs", "expected rows of " + std::to_string(sizeof(DrawnLogprobs) / kWord) + " words, found " +
                                 std::to_string(logprob_words));
  }
  const std::int64_t edit_bytes = slot_words * kWord - static_cast<std::int64_t>(sizeof(SamplingSlot));
  if (edit_bytes < 0 || edit_bytes % static_cast<std::int64_t>(sizeof(LogitEdit)) != 0) {
    fail("outputs.sampling_slots", "expected rows of " + std::to_string(sizeof(SamplingSlot) / kWord) +
                                       " words and 4 for each edit, found " + std::to_string(slot_words));
  }
}

// `bytes` from the reference on must lie inside its tensor.
void check_ref(const CudaPlan& plan, const CudaExtents& bounds, const TensorRef& ref, std::int64_t bytes,
               const std::string& where) {
  const CudaTensor& tensor = plan.tensors[static_cast<std::size_t>(ref.tensor)];
  const std::int64_t offset = ref.offset.at(bounds);
  const std::int64_t size = max_bytes(plan, tensor);
  if (bytes <= size && offset <= size - bytes) return;
  fail(where, "expected " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) +
                  " to lie inside tensor " + tensor.name + " of " + std::to_string(size) + " bytes");
}

std::int64_t matrix_bytes(std::int64_t rows, std::int64_t columns, CudaDType dtype, const std::string& where) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, item_size(dtype), &bytes)) {
    fail(where, "expected matrices whose sizes fit in 64 bits");
  }
  return bytes;
}

void check_tensor_map(const CudaPlan& plan, const CudaExtents& bounds, const TensorMapRef& map,
                      const std::string& where) {
  constexpr std::int64_t kChunkBytes = 16;  // what the copy engine addresses
  const CudaTensor& tensor = plan.tensors[static_cast<std::size_t>(map.tensor)];
  // Their places are known when the engine is loaded.
  if (tensor.kind != CudaTensorKind::kArena && tensor.kind != CudaTensorKind::kWeight) {
    fail(where, "expected a tensor map of an arena or weight tensor, found " + tensor.name);
  }
  if (item_size(tensor.dtype) != 2) fail(where, "expected a tensor map of 16-bit elements, found " + tensor.name);
  for (const std::int64_t bytes : {map.offset, 2 * map.columns, 2 * map.box_columns}) {
    if (bytes % kChunkBytes == 0) continue;
    fail(where, "expected a tensor map whose offset, rows and boxes are multiples of 16 bytes, found " +
                    std::to_string(bytes));
  }
  check_ref(plan, bounds, {map.tensor, {map.offset, {}}}, matrix_bytes(map.rows, map.columns, tensor.dtype, where),
            where);
}

void check_launch(const CudaPlan& plan, const CudaExtents& bounds, const LaunchInstruction& launch,
                  const std::string& where) {
  for (std::size_t axis = 0; axis < launch.grid.size(); ++axis) {
    if (launch.grid[axis].at(bounds) > kMaxGrid[axis]) {
      fail(where, "expected a grid of at most 2147483647 × 65535 × 65535 blocks, found " +
                      std::to_string(launch.grid[axis].at(bounds)));
    }
  }
  if (parameter_bytes(launch) > kMaxParameterBytes) fail(where, "expected at most 4096 bytes of arguments");
  for (const LaunchArgument& argument : launch.arguments) {
    if (const auto* ref = std::get_if<TensorRef>(&argument)) check_ref(plan, bounds, *ref, 0, where);
    if (const auto* map = std::get_if<TensorMapRef>(&argument)) check_tensor_map(plan, bounds, *map, where);
    const auto* value = std::get_if<ExtentExpr>(&argument);
    if (value && value->at(bounds) > std::numeric_limits<std::int32_t>::max()) {
      fail(where, "expected an int argument that fits in 32 bits, found " + std::to_string(value->at(bounds)));
    }
  }
}

void check_matmul(const CudaPlan& plan, const CudaExtents& bounds, const MatmulInstruction& matmul,
                  const std::string& where) {
  const auto check = [&](const TensorRef& ref, std::int64_t rows, std::int64_t columns, CudaDType dtype) {
    const CudaTensor& tensor = plan.tensors[static_cast<std::size_t>(ref.tensor)];
    if (tensor.dtype != dtype) {
      fail(where, "expected tensor " + tensor.name + " to be " + std::string(to_string(dtype)) + ", found " +
                      std::string(to_string(tensor.dtype)));
    }
    check_ref(plan, bounds, ref, matrix_bytes(rows, columns, dtype, where), where);
  };
  const bool known = matmul.dtype == CudaDType::kBFloat16 || matmul.dtype == CudaDType::kFloat16;
  if (!known || (matmul.out_dtype != matmul.dtype && matmul.out_dtype != CudaDType::kFloat32)) {
    fail(where, "expected dtype bfloat16 or float16, and out_dtype the same or float32");
  }
  const std::int64_t rows = matmul.rows.at(bounds);
  check(matmul.x, rows, matmul.in_features, matmul.dtype);
  check(matmul.weight, matmul.out_features, matmul.in_features, matmul.dtype);
  check(matmul.y, rows, matmul.out_features, matmul.out_dtype);
  if (matmul.bias) check(*matmul.bias, 1, matmul.out_features, matmul.dtype);
  if (matmul.residual) check(*matmul.residual, rows, matmul.out_features, matmul.out_dtype);
  const CudaTensorKind written = plan.tensors[static_cast<std::size_t>(matmul.y.tensor)].kind;
  if (written != CudaTensorKind::kArena) fail(where, "expected to write to an arena tensor");
}

void check_kernels(const CudaPlan& plan, const Container& container) {
  for (const CudaKernel& kernel : plan.kernels) {
    for (const auto& [arch, key] : kernel.cubins) {
      if (container.at("cubin." + key).dtype != "U8") fail("kernel " + kernel.name, "expected cubins of dtype U8");
    }
  }
}

// The largest extents of the steps that a program is chosen for.
CudaExtents bounds_of(const CudaPlan& plan, const CudaProgram& program) {
  CudaExtents bounds = plan.bounds;
  const auto limit = [&](CudaSymbol symbol, std::int64_t most) { bounds[symbol] = std::min(bounds[symbol], most); };
  for (const CudaSymbol symbol : {CudaSymbol::kNumTokens, CudaSymbol::kNumSeqs, CudaSymbol::kNumDecodeSeqs,
                                  CudaSymbol::kNumPrefillSeqs, CudaSymbol::kNumPrefillTokens, CudaSymbol::kNumLogits}) {
    limit(symbol, program.max_tokens);
  }
  limit(CudaSymbol::kNumSeqsPlus1, program.max_tokens + 1);
  if (program.decode_only) bounds[CudaSymbol::kNumPrefillSeqs] = bounds[CudaSymbol::kNumPrefillTokens] = 0;
  return bounds;
}

void check_program(const CudaPlan& plan, const CudaProgram& program) {
  const CudaExtents bounds = bounds_of(plan, program);
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const std::string where = "program " + program.name + " for " + program.arch + ", instruction " + std::to_string(i);
    if (const auto* launch = std::get_if<LaunchInstruction>(&program.instructions[i])) {
      check_launch(plan, bounds, *launch, where);
      if (!plan.kernels[static_cast<std::size_t>(launch->kernel)].cubins.contains(program.arch)) {
        fail(where, "expected a kernel compiled for the program's architecture");
      }
    } else {
      check_matmul(plan, bounds, std::get<MatmulInstruction>(program.instructions[i]), where);
    }
  }
}

}  // namespace

int cuda_step_input_index(std::string_view name) {
  const auto found = std::ranges::find(kCudaStepInputs, name, &CudaStepInput::name);
  return found == std::end(kCudaStepInputs) ? -1 : static_cast<int>(found - std::begin(kCudaStepInputs));
}

std::int64_t max_bytes(const CudaPlan& plan, const CudaTensor& tensor) {
  std::int64_t bytes = item_size(tensor.dtype);
  for (const CudaDim& dim : tensor.shape) {
    if (dim.symbol == CudaSymbol::kNumBlocks) continue;
    const std::int64_t extent = dim.symbol ? plan.bounds[*dim.symbol] : dim.value;
    if (__builtin_mul_overflow(bytes, extent, &bytes)) fail(tensor, "expected a size that fits in 64 bits");
  }
  return bytes;
}

std::int64_t parameter_bytes(const LaunchInstruction& launch) {
  std::int64_t bytes = 0;
  for (const LaunchArgument& argument : launch.arguments) {
    const bool is_pointer =
        std::holds_alternative<TensorRef>(argument) || std::holds_alternative<NullPointer>(argument);
    const bool is_map = std::holds_alternative<TensorMapRef>(argument);
    const ParameterSize size = is_pointer ? kPointerSize : is_map ? kTensorMapSize : kScalarSize;
    bytes = (bytes + size.alignment - 1) / size.alignment * size.alignment + size.bytes;
  }
  return bytes;
}

void check_cuda_plan(const CudaPlan& plan, const Manifest& manifest, const Container& container) {
  check_bounds(plan, manifest);
  for (const CudaTensor& tensor : plan.tensors) check_tensor(plan, tensor, manifest, container);
  check_caches(plan, manifest);
  check_outputs(plan, manifest);
  check_kernels(plan, container);
  for (const CudaProgram& program : plan.programs) check_program(plan, program);
}

}  // namespace tl
