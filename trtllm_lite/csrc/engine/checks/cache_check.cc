#include "engine/checks/cache_check.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "engine/checks/plan_check.h"
#include "engine/checks/refuse_plan.h"
#include "engine/module.h"
#include "errors.h"

namespace tl {
namespace {

[[noreturn]] void refuse_groups(const std::string& message) {
  throw EngineError("manifest.kv_cache.groups: " + message);
}

bool is_state(const CacheGroup& group) { return group.kind == CacheKindName::kState; }

void check_group(const CacheGroup& group, bool is_whole) {
  if (is_state(group) ? group.blocks < 1 : group.blocks != 1) {
    refuse_groups("expected one block, or several in a group of states, found " + std::to_string(group.blocks) +
                  " in " + group.name);
  }
  if ((group.window > 0) != (group.kind == CacheKindName::kWindow)) {
    refuse_groups("expected a window if and only if the kind is window, found " + std::to_string(group.window) +
                  " in " + group.name);
  }
  // A pipeline stage may have no layer of a group.
  if (is_whole && group.caches.empty()) refuse_groups("expected one or more caches in " + group.name + ", found none");
}

// Where a tensor begins and ends in a block, or in a run of blocks.
using ByteSpan = std::pair<std::int64_t, std::int64_t>;

// Returns the last end of the `spans` of a group. Throws if two of them overlap.
std::int64_t end_of(std::vector<ByteSpan> spans, const CacheGroup& group) {
  std::ranges::sort(spans);
  std::int64_t end = 0;
  for (const auto& [begin, next] : spans) {
    if (begin < std::exchange(end, next))
      refuse_plan("tensors", "expected caches of " + group.name + " that do not overlap");
  }
  return end;
}

std::int64_t sum_of(const std::vector<ByteSpan>& spans) {
  std::int64_t sum = 0;
  for (const auto& [begin, end] : spans) sum = std::min(sum + end - begin, kMaxBytes + 1);
  return sum;
}

// Checks that states which end at byte `end` of a run of blocks take as many blocks as the manifest says. In a pipeline
// all stages have runs of equally many blocks, which the states of a stage need not fill.
void check_run(const CacheGroup& group, std::int64_t end, std::int64_t bytes_per_block, bool is_whole) {
  const std::int64_t blocks = (end + bytes_per_block - 1) / bytes_per_block;
  if (blocks == group.blocks || (blocks < group.blocks && !is_whole)) return;
  refuse_plan("tensors", "expected states in " + std::to_string(group.blocks) +
                             " blocks, as the manifest says, found " + std::to_string(blocks));
}

// Checks that the plan has a cache for each cached port of the manifest's module; returns the bytes that those which
// the module keeps take in a block.
std::int64_t check_features(const Plan& plan, const Manifest& manifest) {
  const Module& module = only_module(manifest);
  const std::vector<Port> kept = ports(module.outputs, true);
  const auto num_ports = static_cast<std::int64_t>(kept.size() + ports(module.inputs, true).size());
  const auto num_caches = std::ranges::count_if(plan.tensors, [](const PlanTensor& tensor) {
    return tensor.kind == TensorKind::kCache && tensor.name == kFeatures;
  });
  const std::vector<CacheGroup>& groups = manifest.kv_cache.groups;
  const bool has_windows = std::ranges::any_of(groups, [](const CacheGroup& group) { return group.window > 0; });
  const bool is_usual = !has_windows && std::ranges::count_if(groups, std::not_fn(is_state)) == 1;
  if (num_caches != num_ports || num_ports > 1 || (num_ports > 0 && !is_usual)) {
    refuse_plan("tensors",
                "expected a cache of features if a port of the module says so, beside one group of attention layers, "
                "without windows");
  }
  std::int64_t bytes = 0;
  for (const Port& port : kept) bytes += block_bytes(port);
  if (bytes == 0 || bytes < manifest.kv_cache.bytes_per_block) return bytes;
  refuse_plan("tensors", "expected features of less than the manifest's " +
                             std::to_string(manifest.kv_cache.bytes_per_block) + " bytes a block, found " +
                             std::to_string(bytes));
}

}  // namespace

KeptCaches kept_caches(const KvCache& cache) {
  KeptCaches kept;
  for (std::size_t number = 0; number < cache.groups.size(); ++number) {
    for (const Cache& one : cache.groups[number].caches) {
      std::string tensor = one.name + "." + std::to_string(one.layer);
      if (kept.try_emplace(tensor, static_cast<std::int64_t>(number), &one).second) continue;
      refuse_groups("expected a layer in one group, found " + tensor + " twice");
    }
  }
  return kept;
}

void check_cache_groups(const KvCache& cache, const RankMapping& mapping) {
  if (cache.groups.empty()) refuse_groups("expected one or more, found none");
  const bool is_whole = mapping.pp_size == 1;  // a pipeline stage may have states alone
  const auto has_caches = [&](const CacheGroup& group) {
    return !group.caches.empty() && !(is_whole && is_state(group));
  };
  for (const CacheGroup& group : cache.groups) check_group(group, is_whole);
  if (std::ranges::none_of(cache.groups, has_caches) || std::min(cache.num_blocks, cache.bytes_per_block) == 0) {
    throw EngineError("manifest.kv_cache: expected layers with attention, and one or more blocks of one or more bytes");
  }
  const auto states = std::ranges::find_if(cache.groups, is_state);
  if (states == cache.groups.end() || (states != cache.groups.begin() && states + 1 == cache.groups.end())) return;
  refuse_groups("expected one group of states at most, after others, found " + states->name);
}

void check_caches(const Plan& plan, const Manifest& manifest, const KeptCaches& kept) {
  const KvCache& config = manifest.kv_cache;
  const bool in_blocks = manifest.target.kind != TargetKind::kTensorrt;  // TensorRT has memory of its own for each
  const bool is_whole = manifest.mapping.pp_size == 1;
  std::vector<std::vector<ByteSpan>> spans(config.groups.size());
  for (const PlanTensor& tensor : plan.tensors) {
    if (tensor.kind != TensorKind::kCache || tensor.name == kFeatures) continue;
    const auto group = static_cast<std::size_t>(kept.find(tensor.name)->second.group);
    spans[group].emplace_back(tensor.offset, tensor.offset + max_bytes(plan, tensor));
  }
  const std::int64_t of_features = check_features(plan, manifest);
  std::int64_t bytes_per_block = 0;
  for (std::size_t number = 0; number < spans.size(); ++number) {
    const CacheGroup& group = config.groups[number];
    if (spans[number].size() != group.caches.size()) {
      refuse_plan("tensors", "expected " + std::to_string(group.caches.size()) + " caches of " + group.name +
                                 ", as the manifest says, found " + std::to_string(spans[number].size()));
    }
    const std::int64_t end = in_blocks ? end_of(spans[number], group) : sum_of(spans[number]);
    if (is_state(group)) {
      check_run(group, end, config.bytes_per_block - of_features, is_whole);
    } else {
      bytes_per_block = std::max(bytes_per_block, end);
    }
  }
  const bool has_states_alone = bytes_per_block == 0 && !is_whole;  // check_run has checked the size of their blocks
  if (bytes_per_block + of_features == config.bytes_per_block || has_states_alone) return;
  refuse_plan("tensors", "expected KV caches of " + std::to_string(config.bytes_per_block) +
                             " bytes a block in all, as the manifest says, found " +
                             std::to_string(bytes_per_block + of_features));
}

void check_group_of(const CallInstruction& call, const Plan& plan, const Manifest& manifest, const KeptCaches& kept) {
  const std::vector<CacheGroup>& groups = manifest.kv_cache.groups;
  const auto attribute = [&](const char* name) {
    return call.attributes.contains(name) ? std::get<std::int64_t>(call.attributes.at(name)) : 0;
  };
  const bool has_group = call.attributes.contains("cache_group");
  const std::int64_t number = attribute("cache_group"), window = attribute("window");
  if (has_group && number >= std::ssize(groups)) {
    refuse_plan("programs",
                "expected a cache_group below " + std::to_string(groups.size()) + ", found " + std::to_string(number));
  }
  for (const auto& [operand, index] : call.operands) {
    const PlanTensor& tensor = plan.tensors[static_cast<std::size_t>(index)];
    if (tensor.kind != TensorKind::kCache) continue;
    const auto found = kept.find(tensor.name);
    const bool is_own = found == kept.end() ? !has_group : has_group && found->second.group == number;
    if (is_own) continue;
    refuse_plan("programs", "expected " + operand + " of " + call.op + " to be " +
                                (has_group ? "a cache of cache group " + std::to_string(number) : "of no cache group") +
                                ", found " + tensor.name);
  }
  if (!has_group) return;
  const CacheGroup& group = groups[static_cast<std::size_t>(number)];
  const bool takes_states = call.attributes.contains("taken_back");
  const bool holds_drafts = takes_states && attribute("taken_back") > manifest.limits.max_draft_len;
  if (takes_states != is_state(group) || takes_states != holds_drafts) {
    refuse_plan("programs", "expected operators with states that " + std::to_string(manifest.limits.max_draft_len + 1) +
                                " tokens can be taken back from in cache groups of that kind alone, found another in " +
                                group.name);
  }
  if (group.window == 0 || (window > 0 && window <= group.window)) return;
  refuse_plan("programs", "expected a layer of cache group " + std::to_string(number) +
                              " to have a window of at most " + std::to_string(group.window) + ", found " +
                              std::to_string(window));
}

}  // namespace tl
