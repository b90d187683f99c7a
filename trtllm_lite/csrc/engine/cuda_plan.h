// The program of an engine for NVIDIA GPUs: kernel launches and matrix products over tensors with static places, with
// extents that depend on the step.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tl {

class JsonView;

// What a step counts. num_decode_seqs rows of one new token lead the batch; the rest are prefill.
enum class CudaSymbol : std::uint8_t {
  kNumTokens,
  kNumSeqs,
  kNumSeqsPlus1,
  kNumDecodeSeqs,
  kNumPrefillSeqs,
  kNumPrefillTokens,
  kNumLogits,
  kMaxBlocksPerSeq,
  kNumBlocks,
  kNumSlots,
  kNumSms,
};
constexpr std::string_view kCudaSymbolNames[] = {
    "num_tokens", "num_seqs",           "num_seqs_plus_1", "num_decode_seqs", "num_prefill_seqs", "num_prefill_tokens",
    "num_logits", "max_blocks_per_seq", "num_blocks",      "num_slots",       "num_sms"};
constexpr int kNumCudaSymbols = std::size(kCudaSymbolNames);

class CudaExtents {
 public:
  std::int64_t& operator[](CudaSymbol symbol) { return values_[static_cast<std::size_t>(symbol)]; }
  std::int64_t operator[](CudaSymbol symbol) const { return values_[static_cast<std::size_t>(symbol)]; }

 private:
  std::array<std::int64_t, kNumCudaSymbols> values_{};
};

// constant + the sum of ceil(symbol * multiplier / divisor); never negative.
struct ExtentExpr {
  struct Term {
    CudaSymbol symbol;
    std::int64_t multiplier;
    std::int64_t divisor;
  };
  std::int64_t constant = 0;
  std::vector<Term> terms;

  std::int64_t at(const CudaExtents& extents) const {
    std::int64_t sum = constant;
    for (const Term& term : terms) sum += (extents[term.symbol] * term.multiplier + term.divisor - 1) / term.divisor;
    return sum;
  }
};

enum class CudaDType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kInt32, kUint8 };
std::string_view to_string(CudaDType dtype);
std::int64_t item_size(CudaDType dtype);

enum class CudaTensorKind : std::uint8_t { kArena, kWeight, kCache, kInput, kState };

struct CudaDim {
  std::int64_t value = 0;
  std::optional<CudaSymbol> symbol;
};

struct CudaTensor {
  std::string name;
  CudaDType dtype = CudaDType::kFloat32;
  std::vector<CudaDim> shape;
  CudaTensorKind kind = CudaTensorKind::kArena;
  std::int64_t offset = 0;  // arena, state: bytes from its start; weight: from the start of the data section; else 0
};

// An address: a tensor's, plus bytes.
struct TensorRef {
  int tensor = 0;
  ExtentExpr offset;
};

// A tensor from byte `offset` on as a row-major matrix of its 16-bit elements, which the copy engine reads in boxes,
// swizzled by 128 bytes.
struct TensorMapRef {
  int tensor = 0;
  std::int64_t offset = 0;
  std::int64_t rows = 0, columns = 0;
  std::int64_t box_rows = 0, box_columns = 0;
};

struct NullPointer {};
// A kernel's argument: a pointer, a tensor map, an int or a float.
using LaunchArgument = std::variant<NullPointer, TensorRef, TensorMapRef, ExtentExpr, float>;

struct LaunchInstruction {
  int kernel = 0;
  std::array<ExtentExpr, 3> grid;         // no launch if one is 0
  std::vector<LaunchArgument> arguments;  // a struct is several; not in a kernel that takes tensor maps
  bool programmatic = false;              // may start before its predecessor has finished
};

// A cuBLASLt algorithm that was measured best for up to max_rows rows.
struct TimedAlgorithm {
  std::int64_t max_rows = 0;
  std::array<std::uint64_t, 8> data{};
};

// y[rows, out] = x[rows, in] @ weight[out, in]^T [+ bias[out]] [+ residual[rows, out]], row-major, accumulated in
// float32. `residual` may be y.
struct MatmulInstruction {
  TensorRef x, weight, y;
  std::optional<TensorRef> bias, residual;
  ExtentExpr rows;
  std::int64_t in_features = 0, out_features = 0;
  CudaDType dtype = CudaDType::kBFloat16, out_dtype = CudaDType::kBFloat16;
  std::vector<TimedAlgorithm> algorithms;  // max_rows ascend; beyond the last, the library's heuristic chooses
};

using CudaInstruction = std::variant<LaunchInstruction, MatmulInstruction>;

struct CudaKernel {
  std::string name;
  std::map<std::string, std::string> cubins;  // by arch: the key of the entry cubin.<key>
  int threads = 0;
  std::int64_t shared_bytes = 0;
};

// Carries out any step of at most max_tokens tokens, or, if decode_only, those with one token and one row of logits
// (number i is row i's) for each sequence.
struct CudaProgram {
  std::string name;
  std::string arch;
  bool decode_only = false;
  std::int64_t max_tokens = 0;
  std::vector<CudaInstruction> instructions;
};

struct CudaPlan {
  CudaExtents bounds;  // largest value of each symbol
  std::int64_t arena_bytes = 0, state_bytes = 0;
  std::vector<std::int64_t> decode_batches;  // ascending: decode steps are padded to one of them
  std::int64_t workspace_bytes = 0;          // for matrix products
  std::int64_t cublaslt_version = 0;         // that the products' algorithms were measured with; 0: there are none
  std::vector<CudaTensor> tensors;
  int logits = 0, tokens = 0;  // float32 [num_logits, vocab_size]; int32 [num_logits], -1 for a row that has no token
  // Words of plugins/sample/slot.cuh: a DrawnLogprobs for each row of logits, a SamplingSlot and its edits for each
  // slot.
  int logprobs = 0, sampling_slots = 0;
  std::vector<CudaKernel> kernels;
  std::vector<CudaProgram> programs;  // in order of preference
};

// Reads the JSON: types, names and ranges of every field; indices are in range. What the fields mean together is
// checked by check_cuda_plan. Throws EngineError.
CudaPlan read_cuda_plan(const JsonView& json);

}  // namespace tl
