#include "engine/checks/plan_check.h"

#include <algorithm>
#include <functional>
#include <map>

#include "cuda/rank_table.cuh"
#include "engine/checks/cache_check.h"
#include "engine/checks/call_flow.h"
#include "engine/checks/launch_check.h"
#include "engine/checks/port_check.h"
#include "engine/checks/refuse_plan.h"
#include "engine/checks/tensor_check.h"
#include "engine/low_rank_parts.h"
#include "engine/module.h"
#include "errors.h"
#include "grammar/grammar.h"
#include "ranks/place.h"
#include "router/tally.cuh"
#include "sample/slot.cuh"
#include "sampling/number_rules.h"

namespace tl {
namespace {

constexpr std::int64_t kWordBytes = 4;  // bytes of an int32
constexpr const char* kRankTableOutput = "ranks";
constexpr const char* kLastTokensOutput = "last_tokens";
constexpr std::string_view kSamplingOutputs[] = {"tokens",      "logprobs",       "sampling_slots",
                                                 "token_masks", kRankTableOutput, kLastTokensOutput};

// Compares the bounds of symbols with their required values.
class Bounds {
 public:
  explicit Bounds(const Extents& bounds) : bounds_(bounds) {}

  void expect(Symbol symbol, std::int64_t low, std::int64_t high, const char* why) const {
    const std::int64_t found = bounds_[symbol];
    if (found >= low && found <= high) return;
    refuse_plan("symbols." + std::string(to_string(symbol)), "expected " + std::to_string(low) +
                                                                 (high > low ? " to " + std::to_string(high) : "") +
                                                                 ", " + why + ", found " + std::to_string(found));
  }
  void exactly(Symbol symbol, std::int64_t value, const char* why) const { expect(symbol, value, value, why); }

 private:
  const Extents& bounds_;
};

void check_bounds(const Plan& plan, const Manifest& manifest) {
  const Limits& limits = manifest.limits;
  const KvCache& cache = manifest.kv_cache;
  const Bounds bounds(plan.symbols);
  const std::int64_t num_seqs = plan.symbols[Symbol::kNumSeqs], num_tokens = plan.symbols[Symbol::kNumTokens];
  bounds.expect(Symbol::kNumTokens, std::max(limits.max_num_tokens, num_seqs), kMaxStepTokens,
                "the manifest's max_num_tokens or more");
  bounds.expect(Symbol::kNumSeqs, limits.max_batch_size, kMaxStepSeqs, "the manifest's max_batch_size or more");
  bounds.exactly(Symbol::kNumSeqsPlus1, num_seqs + 1, "one more than num_seqs");
  bounds.exactly(Symbol::kNumDecodeSeqs, num_seqs, "num_seqs");
  bounds.exactly(Symbol::kNumPrefillSeqs, num_seqs, "num_seqs");
  bounds.exactly(Symbol::kNumPrefillTokens, num_tokens, "num_tokens");
  bounds.exactly(Symbol::kNumTokenRows, takes_token_rows(plan) ? num_tokens : 0,
                 "num_tokens if rows take the place of tokens");
  const std::int64_t tokens_per_row = only_module(manifest).tokens_per_row;
  bounds.exactly(Symbol::kNumImageRows, tokens_per_row == 0 ? 0 : num_tokens / tokens_per_row,
                 "num_tokens / tokens_per_row of a vision tower");
  bounds.expect(Symbol::kNumLogits, num_seqs, num_tokens, "num_seqs or more, num_tokens or less");
  bounds.exactly(Symbol::kNumTables, num_seqs * static_cast<std::int64_t>(cache.groups.size()),
                 "num_seqs times the cache groups");
  bounds.exactly(Symbol::kMaxBlocksPerSeq, (limits.max_seq_len + cache.tokens_per_block - 1) / cache.tokens_per_block,
                 "the blocks of max_seq_len tokens");
  const std::int64_t num_tables = std::max(plan.symbols[Symbol::kNumTables], std::int64_t{1});
  bounds.expect(Symbol::kMaxBlocksPerSeq, 1, kMaxCacheBlocks / num_tables, "block tables of at most 2^26 entries");
  bounds.expect(Symbol::kNumBlocks, cache.num_blocks, std::min(cache.num_blocks, kMaxCacheBlocks),
                "the manifest's num_blocks, at most 2^26");
  const std::int64_t num_loras = plan.symbols[Symbol::kNumLoras];
  bounds.expect(Symbol::kNumLoras, plan.cuda && !plan.cuda->adapted.empty() ? 1 : 0, kMaxLoras,
                "1 or more if adapters may change products, at most 256");
  bounds.expect(Symbol::kAdapterStride, num_loras == 0 ? 0 : 1, num_loras == 0 ? 0 : kMaxExtent,
                "1 or more if there are adapters");
  bounds.exactly(Symbol::kNumAdapterTokens, num_loras == 0 ? 0 : num_tokens, "num_tokens if there are adapters");
  bounds.exactly(Symbol::kNumAdapterLogits, num_loras == 0 ? 0 : plan.symbols[Symbol::kNumLogits],
                 "num_logits if there are adapters");
  bounds.expect(Symbol::kNumSlots, limits.max_batch_size, 2 * kMaxStepSeqs, "max_batch_size or more");
}

void check_cuda_settings(const Plan& plan, TargetKind target) {
  if (plan.cuda.has_value() != (target == TargetKind::kCuda))
    refuse_plan("cuda", "expected settings for GPU engines alone");
  if (!plan.cuda) return;
  const std::vector<std::int64_t>& batches = plan.cuda->decode_batches;
  const std::int64_t num_seqs = plan.symbols[Symbol::kNumSeqs];
  const bool ascend = std::ranges::adjacent_find(batches, std::greater_equal()) == batches.end();
  if (ascend && !batches.empty() && batches.back() == num_seqs) return;
  refuse_plan("cuda.decode_batches", "expected ascending numbers up to num_seqs (" + std::to_string(num_seqs) + ")");
}

void check_mapping(const RankMapping& mapping) {
  if (mapping.tp_size % mapping.moe_ep_size != 0) {
    throw EngineError("manifest.mapping.moe_ep_size: expected a divisor of tp_size = " +
                      std::to_string(mapping.tp_size) + ", found " + std::to_string(mapping.moe_ep_size));
  }
  if (mapping.rank < num_ranks(mapping)) return;
  throw EngineError("manifest.mapping.rank: expected one of " + std::to_string(num_ranks(mapping)) +
                    " ranks, found number " + std::to_string(mapping.rank));
}

// An encoder has no cache, and is a whole model on one device.
void check_encoder(const Manifest& manifest) {
  const KvCache& cache = manifest.kv_cache;
  const bool caches = !cache.groups.empty() || std::max(cache.num_blocks, cache.bytes_per_block) > 0;
  if (caches) throw EngineError("manifest.kv_cache: expected no groups and blocks of an encoder, found some");
  if (manifest.target.kind == TargetKind::kTensorrt || num_ranks(manifest.mapping) != 1) {
    throw EngineError("manifest.target: expected an encoder for one rank on a CPU or a GPU, found another");
  }
}

void check_target_of_states(const Manifest& manifest) {
  const auto is_state = [](const CacheGroup& group) { return group.kind == CacheKindName::kState; };
  if (std::ranges::none_of(manifest.kv_cache.groups, is_state)) return;
  if (manifest.target.kind != TargetKind::kTensorrt) return;
  throw EngineError(
      "manifest.target: expected an engine for a CPU or a GPU, because the model has recurrent layers, found another");
}

// Checks an output: its kind, dtype and first extent, and that it has `rank` axes of which the others are integers.
const PlanTensor& check_output(const Plan& plan, const std::string& name, TensorKind kind, DType dtype, Symbol rows,
                               std::size_t rank) {
  const PlanTensor& tensor = output_of(plan, name);
  const bool matches = tensor.kind == kind && tensor.dtype == dtype && tensor.shape.size() == rank &&
                       tensor.shape[0].symbol == rows && (rank == 1 || !tensor.shape[1].symbol);
  if (matches) return tensor;
  refuse_plan("outputs." + name, "expected " + std::string(to_string(dtype)) + " in the " +
                                     std::string(to_string(kind)) + ", of " + std::to_string(rank) +
                                     " axes, the first " + std::string(to_string(rows)) + ", found another tensor");
}

// Checks the tensors whose rows are the structs of plugins/sample/slot.cuh, and the masks.
void check_sampling_outputs(const Plan& plan, std::int64_t vocab_size) {
  std::vector<std::string> numbers;
  visit_numbers([&](auto, const auto& rule) { numbers.emplace_back(rule.name); });
  if (plan.cuda->slot_numbers != numbers) {
    refuse_plan("cuda.slot_numbers",
                "expected the sampling parameters of this version's records, found others: build the engine "
                "again");
  }
  check_output(plan, "tokens", TensorKind::kArena, DType::kInt32, Symbol::kNumLogits, 1);
  const PlanTensor& logprobs = check_output(plan, "logprobs", TensorKind::kArena, DType::kInt32, Symbol::kNumLogits, 2);
  const PlanTensor& slots =
      check_output(plan, "sampling_slots", TensorKind::kState, DType::kInt32, Symbol::kNumSlots, 2);
  const std::int64_t logprob_words = logprobs.shape[1].value, slot_words = slots.shape[1].value;
  if (logprob_words * kWordBytes != sizeof(DrawnLogprobs)) {
    refuse_plan("outputs.logprobs", "expected rows of " + std::to_string(sizeof(DrawnLogprobs) / kWordBytes) +
                                        " words, found " + std::to_string(logprob_words));
  }
  const std::int64_t edit_bytes = slot_words * kWordBytes - static_cast<std::int64_t>(sizeof(SamplingSlot));
  if (edit_bytes < 0 || edit_bytes % static_cast<std::int64_t>(sizeof(LogitEdit)) != 0) {
    refuse_plan("outputs.sampling_slots", "expected rows of " + std::to_string(sizeof(SamplingSlot) / kWordBytes) +
                                              " words and 4 for each edit, found " + std::to_string(slot_words));
  }
  const PlanTensor& masks = check_output(plan, "token_masks", TensorKind::kState, DType::kInt32, Symbol::kNumSeqs, 2);
  const auto mask_words = static_cast<std::int64_t>(tl::mask_words(static_cast<std::size_t>(vocab_size)));
  if (masks.shape[1].value != mask_words) {
    refuse_plan("outputs.token_masks", "expected rows of a bit for each token, " + std::to_string(mask_words) +
                                           " words, found " + std::to_string(masks.shape[1].value));
  }
}

// Checks that executors can return the output: numbers of two or four bytes in rows, one for each token, row of logits,
// sequence or row of an image, or a fixed number of rows.
void check_rows(const Plan& plan, const std::string& name) {
  const PlanTensor& tensor = output_of(plan, name);
  const bool is_number = tensor.dtype == DType::kFloat32 || item_size(tensor.dtype) == 2;
  const bool has_rows = tensor.shape.size() == 2 && !tensor.shape[1].symbol;
  const auto symbol = has_rows ? tensor.shape[0].symbol : std::nullopt;
  const bool varies_alike = !symbol || symbol == Symbol::kNumTokens || symbol == Symbol::kNumLogits ||
                            symbol == Symbol::kNumSeqs || symbol == Symbol::kNumImageRows;
  if (tensor.kind == TensorKind::kArena && is_number && has_rows && varies_alike) return;
  refuse_plan("outputs." + name,
              "expected floating-point rows in the arena, one for each token, row of logits, sequence or row of an "
              "image, or a fixed number of "
              "them, found another tensor");
}

// Checks the table of ranks (plugins/cuda/rank_table.cuh), which engines of several ranks have.
void check_rank_table(const Plan& plan, std::int64_t num_ranks) {
  const auto found = plan.outputs.find(kRankTableOutput);
  if ((found != plan.outputs.end()) != (num_ranks > 1)) {
    refuse_plan("outputs", "expected a table of ranks if and only if the engine has several ranks");
  }
  if (found == plan.outputs.end()) return;
  const PlanTensor& table = plan.tensors[static_cast<std::size_t>(found->second)];
  const auto words = static_cast<std::int64_t>(sizeof(RankTable) / sizeof(std::int64_t));
  const bool matches = table.kind == TensorKind::kState && table.dtype == DType::kInt64 && table.shape.size() == 1 &&
                       table.shape[0] == Dim{words, std::nullopt};
  if (!matches)
    refuse_plan("outputs.ranks", "expected " + std::to_string(words) + " words of the state, found another tensor");
}

// Checks an engine whose ranks communicate by NCCL: it must be one stage of several GPUs, and its ranks share the last
// tokens.
void check_shared_tokens(const Plan& plan, const Manifest& manifest) {
  if (manifest.allreduce_strategy != AllreduceStrategy::kNccl) return;
  if (manifest.target.kind != TargetKind::kCuda || manifest.mapping.tp_size == 1 || manifest.mapping.pp_size > 1) {
    throw EngineError("manifest.allreduce_strategy: expected NCCL for the GPUs of one stage alone");
  }
  check_output(plan, kLastTokensOutput, TensorKind::kState, DType::kInt32, Symbol::kNumSlots, 1);
}

void check_outputs(const Plan& plan, const Manifest& manifest) {
  const Module& module = only_module(manifest);
  const std::int64_t vocab_size = manifest.model.vocab_size;
  const bool is_cuda = manifest.target.kind == TargetKind::kCuda, samples = is_cuda && generates(module);
  if (is_cuda) check_rank_table(plan, num_ranks(manifest.mapping));
  check_shared_tokens(plan, manifest);
  check_links(plan, manifest);
  if (!is_last_stage(manifest.mapping)) return;
  const FirstOutput first = first_output(module.kind);
  const PlanTensor& rows =
      check_output(plan, std::string(first.name), TensorKind::kArena, DType::kFloat32, first.rows, 2);
  if (generates(module) && rows.shape[1].value != vocab_size) {
    refuse_plan("outputs.logits", "expected rows of vocab_size = " + std::to_string(vocab_size) + " logits, found " +
                                      std::to_string(rows.shape[1].value));
  }
  if (samples) check_sampling_outputs(plan, vocab_size);
  for (const auto& [name, index] : plan.outputs) {
    if (!samples || std::ranges::find(kSamplingOutputs, name) == std::end(kSamplingOutputs)) check_rows(plan, name);
  }
}

void check_tallies(const Plan& plan) {
  for (const int index : plan.tallies) {
    const PlanTensor& tally = plan.tensors[static_cast<std::size_t>(index)];
    const bool matches = tally.kind == TensorKind::kState && tally.dtype == DType::kInt64 && tally.shape.size() == 1 &&
                         !tally.shape[0].symbol && tally.shape[0].value > kTallyPlaces;
    if (!matches)
      refuse_plan("tallies", "expected a count of each expert and 3 more in the state, found " + tally.name);
  }
}

// Whether the target's executor runs instructions of this kind.
bool runs_on(const Instruction& instruction, TargetKind target) {
  const bool is_network = std::holds_alternative<NetworkInstruction>(instruction);
  if (is_network || target == TargetKind::kTensorrt) return is_network && target == TargetKind::kTensorrt;
  if (std::holds_alternative<CollectiveInstruction>(instruction)) return true;
  return std::holds_alternative<CallInstruction>(instruction) == (target == TargetKind::kCpu);
}

// Together, the ranks' tables must have a row for every token that a request may contain.
void check_vocabulary_of(const CallInstruction& call, const Plan& plan, const Manifest& manifest) {
  if (call.op != "Embedding") return;
  const PlanTensor& table = plan.tensors[static_cast<std::size_t>(call.operands.at("weight"))];
  const std::int64_t rows = table.shape[0].value * manifest.mapping.tp_size;
  if (call.operands.contains(std::string(kStepInputs[kTokenRows].name)) != takes_token_rows(plan)) {
    refuse_plan("programs", "expected Embedding to read token_rows if and only if that is an input of the plan");
  }
  if (rows >= manifest.model.vocab_size) return;
  refuse_plan("tensor " + table.name, "expected embeddings of " + std::to_string(manifest.model.vocab_size) +
                                          " tokens in all, found " + std::to_string(rows));
}

void check_kinds(const Plan& plan, TargetKind target) {
  const bool is_cpu = target == TargetKind::kCpu;
  if (is_cpu && plan.programs.size() != 1) refuse_plan("programs", "expected the one program of a CPU engine");
  for (std::size_t number = 0; number < plan.programs.size(); ++number) {
    const Program& program = plan.programs[number];
    const std::string where = "programs[" + std::to_string(number) + "]";
    if (is_cpu && (program.arch != "cpu" || program.max_tokens < plan.symbols[Symbol::kNumTokens])) {
      refuse_plan(where, "expected a program for cpu and all steps, found another");
    }
    if (program.adapters && (!plan.cuda || plan.cuda->adapted.empty())) {
      refuse_plan(where, "expected a program without adapters, because they change no product of this engine");
    }
    for (const Instruction& instruction : program.instructions) {
      if (!runs_on(instruction, target)) {
        refuse_plan(where,
                    "expected instructions that " + std::string(to_string(target)) + " engines have, found others");
      }
    }
  }
}

// Checks that there are programs for prompts and for generation, and that each runs one existing network.
void check_networks(const Plan& plan, const Container& container) {
  const bool has_both = plan.programs.size() == 2 && !plan.programs[0].decode_only && plan.programs[1].decode_only;
  if (!has_both) refuse_plan("programs", "expected a program for prompts and one for generation");
  for (const Program& program : plan.programs) {
    if (program.instructions.size() != 1) refuse_plan("programs", "expected one network in " + program.name);
    const auto& network = std::get<NetworkInstruction>(program.instructions.front());
    if (container.at("network." + network.network).dtype != "U8")
      refuse_plan("programs", "expected a network of bytes");
  }
}

}  // namespace

int step_input_index(std::string_view name) {
  const auto found = std::ranges::find(kStepInputs, name, &StepInput::name);
  return found == std::end(kStepInputs) ? -1 : static_cast<int>(found - std::begin(kStepInputs));
}

const PlanTensor& output_of(const Plan& plan, const std::string& name) {
  const auto found = plan.outputs.find(name);
  if (found == plan.outputs.end()) refuse_plan("outputs", "expected one called " + name + ", found none");
  return plan.tensors[static_cast<std::size_t>(found->second)];
}

std::vector<ValueBound> check_plan(const Plan& plan, const Manifest& manifest, const Container& container) {
  check_mapping(manifest.mapping);
  check_modules(manifest);
  if (generates(only_module(manifest))) {
    check_cache_groups(manifest.kv_cache, manifest.mapping);
    check_target_of_states(manifest);
  } else {
    check_encoder(manifest);
  }
  const KeptCaches kept = kept_caches(manifest.kv_cache);
  check_bounds(plan, manifest);
  check_cuda_settings(plan, manifest.target.kind);
  check_tensors(plan, manifest, container, kept);
  check_caches(plan, manifest, kept);
  check_outputs(plan, manifest);
  check_ports(plan, manifest);
  check_tallies(plan);
  check_kinds(plan, manifest.target.kind);
  if (manifest.target.kind == TargetKind::kCpu) {
    std::vector<ValueBound> bounds = check_calls(plan, container, manifest.kv_cache.tokens_per_block);
    for (const Instruction& instruction : plan.programs.front().instructions) {
      if (const auto* call = std::get_if<CallInstruction>(&instruction)) {
        check_group_of(*call, plan, manifest, kept);
        check_vocabulary_of(*call, plan, manifest);
      }
    }
    bounds.push_back({kTokenIds, {manifest.model.vocab_size, {}}});
    return bounds;
  }
  if (manifest.target.kind == TargetKind::kTensorrt) {
    check_networks(plan, container);
    return {{kTokenIds, {manifest.model.vocab_size, {}}}, {kLogitsIndices, {0, Symbol::kNumTokens}}};
  }
  low_rank_shapes(plan);
  check_launches(plan, manifest, container);
  return {};
}

}  // namespace tl
