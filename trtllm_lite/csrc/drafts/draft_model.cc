#include "drafts/draft_model.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "caches/cached_inputs.h"
#include "caches/kv_cache_size.h"
#include "drafts/model_drafter.h"
#include "engine/module.h"
#include "errors.h"
#include "sampling/row_sampler.h"

namespace tl {
namespace {

constexpr char kRemedy[] = "; draft with another engine, or build it again";

// `what`: a property that must be equal in both engines.
void check_same(const char* what, const std::string& wanted, const std::string& found) {
  if (wanted == found) return;
  throw ArgumentError(std::string("draft model: expected the ") + what + " of the engine that it drafts for, " +
                      wanted + ", found " + found + kRemedy);
}

void check_same(const char* what, std::int64_t wanted, std::int64_t found) {
  check_same(what, std::to_string(wanted), std::to_string(found));
}

int max_kept(const Manifest& target, const Manifest& own) {
  return drafts(only_module(own)) ? static_cast<int>(target.limits.max_draft_len) : 0;
}

void check_limit(const char* name, std::int64_t least, std::int64_t found) {
  if (found >= least) return;
  throw LimitError(std::string("draft model: expected an engine with ") + name + " of at least " +
                   std::to_string(least) + ", found " + std::to_string(found) +
                   "; lower max_batch_size or max_seq_len" + kRemedy);
}

bool is_state(const CacheSpec& group) { return group.kind == CacheKindName::kState; }

// The draft model uses the block tables of the target model's first group, and takes drafts back by forgetting what it
// computed of each block, which is not how a state forgets.
void check_cache(const Manifest& target, const Manifest& own) {
  check_same("tokens_per_block", target.kv_cache.tokens_per_block, own.kv_cache.tokens_per_block);
  const std::vector<CacheSpec> of_target = cache_specs(target), of_own = cache_specs(own);
  const auto is_wrong = [](const CacheSpec& group) { return group.kind == CacheKindName::kWindow; };
  if (std::ranges::any_of(of_target, is_wrong) || std::ranges::any_of(of_own, is_wrong) ||
      std::ranges::count_if(of_target, std::not_fn(is_state)) > 1) {
    throw ArgumentError(
        "draft model: expected two models with attention of one kind and without attention windows, found another; "
        "choose another method");
  }
  if (std::ranges::any_of(of_own, is_state)) {
    throw ArgumentError(
        "draft model: expected a model without recurrent layers, which only the model that it drafts for may have, "
        "found one with them; draft with another model, or choose another method");
  }
}

int blocks_of_state(const Manifest& target) {
  const std::vector<CacheSpec> groups = cache_specs(target);
  const auto found = std::ranges::find_if(groups, is_state);
  return found == groups.end() ? 0 : found->blocks;
}

// The sampling parameters for drafts, which need no log probabilities and no logits. Drafts ignore the request's
// grammar, adapter and embeddings: drafts that break the grammar are rejected, drafts for requests with adapters come
// from the model without adapters, and embeddings are another model's.
std::shared_ptr<const SlotParams> drafting_params(const std::shared_ptr<const SlotParams>& of_request) {
  auto params = std::make_shared<RequestParams>(static_cast<const RequestParams&>(*of_request));
  params->sampling.logprobs.reset();
  params->sampling.prompt_logprobs.reset();
  params->grammar.reset();
  params->adapter.reset();
  params->rows.reset();
  params->context_logits = params->generation_logits = false;
  return params;
}

// The batch size up to which steps are captured as CUDA graphs. After all drafts of a sequence were accepted, the draft
// model computes two tokens of the sequence in one step. In an engine built for drafts, each sequence of a captured
// batch has 1 + max_draft_len rows.
int captured_batch_size(const Manifest& own, int max_batch_size) {
  if (drafts(only_module(own)) || own.limits.max_draft_len == 0) return max_batch_size;
  const int num_rows = max_batch_size * ModelDrafter::most_at_once(0);
  const int rows_of_sequence = 1 + static_cast<int>(own.limits.max_draft_len);
  return (num_rows + rows_of_sequence - 1) / rows_of_sequence;
}

double weight_bytes(const DeviceExecutor& executor) { return static_cast<double>(executor.memory().weights); }

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void check_draft_model(const Engine& target, const Engine& draft, int max_seq_len, int max_batch_size) {
  const Manifest &wanted = target.manifest(), &own = draft.manifest();
  check_same("kind of device", std::string(to_string(wanted.target.kind)), std::string(to_string(own.target.kind)));
  check_same("vocab_size", wanted.model.vocab_size, own.model.vocab_size);
  check_cache(wanted, own);
  check_kept(wanted, own);
  check_limit("max_batch_size", max_batch_size, own.limits.max_batch_size);
  check_limit("max_seq_len", max_seq_len, own.limits.max_seq_len);
  check_limit("max_num_tokens", ModelDrafter::most_at_once(max_kept(wanted, own)) * max_batch_size,
              own.limits.max_num_tokens);
}

std::shared_ptr<Drafter> draft_model(const DeviceExecutor& executor, DeviceExecutor& draft, int max_batch_size,
                                     std::int64_t num_host_blocks, int num_slots) {
  const Manifest &target = executor.engine().manifest(), &own = draft.engine().manifest();
  if (executor.num_blocks() != draft.num_blocks()) {
    throw std::invalid_argument("draft model: both engines must have the same number of KV blocks");
  }
  return std::make_shared<ModelDrafter>(
      ModelDrafterConfig{.num_slots = num_slots,
                         .num_blocks = static_cast<int>(executor.num_blocks()),
                         .num_host_blocks = static_cast<int>(num_host_blocks),
                         .tokens_per_block = static_cast<int>(own.kv_cache.tokens_per_block),
                         .num_groups = static_cast<int>(target.kv_cache.groups.size()),
                         .blocks_of_state = blocks_of_state(target),
                         .relative_cost = weight_bytes(draft) / weight_bytes(executor),
                         .max_num_tokens = static_cast<int>(own.limits.max_num_tokens),
                         .params = drafting_params,
                         .seconds = seconds_now,
                         .max_kept = max_kept(target, own)},
      draft.make_step_executor(num_host_blocks, captured_batch_size(own, max_batch_size)));
}

}  // namespace tl
