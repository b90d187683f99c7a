#include "engine/plan_check.h"

#include "engine/call_flow.h"
#include "engine/tensor_check.h"
#include "errors.h"

namespace tl {
namespace {

void expect_bound(const Plan& plan, StepSymbol symbol, std::int64_t expected, std::string_view why) {
  if (plan.bound(symbol) == expected) return;
  throw EngineError("plan.symbols." + std::string(kStepSymbolNames[static_cast<int>(symbol)]) + ": expected " +
                    std::to_string(expected) + ", " + std::string(why) + ", found " +
                    std::to_string(plan.bound(symbol)));
}

void check_bounds(const Plan& plan, const Manifest& manifest) {
  const Limits& limits = manifest.limits;
  const KvCacheConfig& cache = manifest.kv_cache;
  expect_bound(plan, StepSymbol::kNumTokens, limits.max_num_tokens, "the manifest's max_num_tokens");
  expect_bound(plan, StepSymbol::kNumSeqs, limits.max_batch_size, "the manifest's max_batch_size");
  expect_bound(plan, StepSymbol::kNumSeqsPlus1, limits.max_batch_size + 1, "one more than num_seqs");
  expect_bound(plan, StepSymbol::kNumBlocks, cache.num_blocks, "the manifest's num_blocks");
  expect_bound(plan, StepSymbol::kMaxBlocksPerSeq,
               (limits.max_seq_len + cache.tokens_per_block - 1) / cache.tokens_per_block,
               "the blocks of max_seq_len tokens");
  if (plan.bound(StepSymbol::kNumLogits) > limits.max_num_tokens) {
    throw EngineError("plan.symbols.num_logits: expected at most max_num_tokens");
  }
}

void check_caches(const Plan& plan, const Manifest& manifest) {
  std::int64_t num_caches = 0;
  std::int64_t bytes_per_block = 0;
  for (const PlanTensor& tensor : plan.tensors) {
    if (tensor.kind != TensorKind::kCache) continue;
    ++num_caches;
    if (__builtin_add_overflow(bytes_per_block, max_bytes(plan, tensor), &bytes_per_block)) {
      throw EngineError("plan: KV cache sizes overflow");
    }
  }
  const KvCacheConfig& config = manifest.kv_cache;
  if (num_caches != 2 * config.num_layers || bytes_per_block != config.bytes_per_block) {
    throw EngineError("plan: expected caches for " + std::to_string(config.num_layers) + " layers of " +
                      std::to_string(config.bytes_per_block) + " bytes a block in all, as the manifest says, found " +
                      std::to_string(num_caches) + " caches of " + std::to_string(bytes_per_block) + " bytes");
  }
}

void check_logits(const Plan& plan, const Manifest& manifest) {
  const Operand& logits = plan.tensors[static_cast<std::size_t>(plan.logits)].operand;
  const Dim rows{0, StepSymbol::kNumLogits};
  const Dim columns{manifest.vocab_size, std::nullopt};
  if (logits.dtype == DType::kFloat32 && logits.rank == 2 && logits.shape[0] == rows && logits.shape[1] == columns) {
    return;
  }
  throw EngineError("plan.outputs.logits: expected float32 [num_logits, " + to_string(columns) +
                    "], found another dtype or shape");
}

}  // namespace

int step_input_index(std::string_view name) {
  for (int i = 0; i < kNumStepInputs; ++i) {
    if (kStepInputs[i].name == name) return i;
  }
  return -1;
}

std::vector<ValueBound> check_plan(const Plan& plan, const Manifest& manifest, const Container& container) {
  check_bounds(plan, manifest);
  for (const PlanTensor& tensor : plan.tensors) check_tensor(plan, tensor, container);
  check_caches(plan, manifest);
  check_logits(plan, manifest);
  return check_calls(plan, manifest.kv_cache.tokens_per_block);
}

}  // namespace tl
