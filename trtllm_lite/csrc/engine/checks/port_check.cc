#include "engine/checks/port_check.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "engine/checks/refuse_plan.h"
#include "engine/module.h"
#include "errors.h"
#include "ranks/place.h"

namespace tl {
namespace {

bool is_token_rows(const PlanTensor& tensor) {
  return tensor.kind == TensorKind::kInput && tensor.name == kStepInputs[kTokenRows].name;
}

// The rows of a cache that a module keeps for another one, or reads of another one.
bool is_rows_of_tokens(const Port& port, std::int64_t tokens_per_block) {
  return port.shape.size() == 3 && port.shape[1] == Dim{tokens_per_block, std::nullopt} && !port.shape[2].symbol;
}

// Checks a value sent from stage to stage: floats of the activations' type, with rows for all tokens.
void check_link(const Plan& plan, const Manifest& manifest, const std::string& name, int index) {
  const PlanTensor& tensor = plan.tensors[static_cast<std::size_t>(index)];
  const std::int64_t bytes = manifest.target.kind == TargetKind::kCpu ? 4 : 2;
  const bool is_float = tensor.dtype == DType::kFloat32 || item_size(tensor.dtype) == 2;
  const bool has_rows = tensor.shape.size() == 2 && tensor.shape[0].symbol == Symbol::kNumTokens &&
                        !tensor.shape[1].symbol && tensor.shape[1].value > 0;
  if (tensor.kind == TensorKind::kArena && is_float && item_size(tensor.dtype) == bytes && has_rows) return;
  refuse_plan(name, "expected a row of floats of " + std::to_string(8 * bytes) + " bits for each token, in the arena");
}

}  // namespace

bool takes_token_rows(const Plan& plan) { return std::ranges::any_of(plan.tensors, is_token_rows); }

void check_modules(const Manifest& manifest) {
  if (manifest.modules.size() != 1) {
    throw EngineError("manifest.modules: expected one module, found " + std::to_string(manifest.modules.size()));
  }
  const Module& module = only_module(manifest);
  if ((module.kind == ModuleKind::kVisionTower) != (module.tokens_per_row > 0)) {
    throw EngineError("manifest.modules: expected tokens_per_row of a vision tower, and of no other module");
  }
  if (drafts(module) && ports(module.inputs, true).empty()) {
    throw EngineError("manifest.modules: expected a drafting head to read rows of a cache, found none");
  }
}

void check_ports(const Plan& plan, const Manifest& manifest) {
  const Module& module = only_module(manifest);
  if (!std::ranges::equal(module.caches, manifest.kv_cache.groups, {}, {}, &CacheGroup::name)) {
    throw EngineError("manifest.modules: expected the module to own the cache groups of the manifest, found others");
  }
  const auto expect = [&](bool holds, const Port& port, const std::string& what) {
    if (!holds) throw EngineError("manifest.modules: expected " + text_of(port) + " to be " + what);
  };
  const auto is_tensor = [&](const Port& port, const PlanTensor& tensor) {
    return port.dtype == tensor.dtype && port.shape == tensor.shape;
  };
  const auto is_place = [&](const Port& port, const std::map<std::string, int>& places) {
    const auto found = places.find(port.name);
    return found != places.end() && is_tensor(port, plan.tensors[static_cast<std::size_t>(found->second)]);
  };
  // A port of the step's own inputs, whose rows come from the caller of a step.
  const auto is_step_input = [&](const Port& port) {
    return std::ranges::any_of(plan.tensors, [&](const PlanTensor& tensor) {
      return is_token_rows(tensor) && tensor.name == port.name && is_tensor(port, tensor);
    });
  };
  const auto is_kept = [&](const Port& port) {
    return port.name == kFeatures && is_rows_of_tokens(port, manifest.kv_cache.tokens_per_block) &&
           std::ranges::any_of(plan.tensors, [&](const PlanTensor& tensor) {
             return tensor.kind == TensorKind::kCache && tensor.name == port.name && is_tensor(port, tensor);
           });
  };
  for (const Port& port : module.inputs) {
    const bool is_given = is_place(port, plan.inputs) || is_step_input(port);
    expect(is_cached(port) ? drafts(module) && is_kept(port) : is_given, port, "an input of the plan");
  }
  for (const Port& port : module.outputs) {
    expect(is_cached(port) ? !drafts(module) && is_kept(port) : is_place(port, plan.outputs), port,
           "an output of the plan");
  }
  const std::size_t num_rows = takes_token_rows(plan) ? 1 : 0;
  if (ports(module.inputs, false).size() != plan.inputs.size() + num_rows) {
    refuse_plan("inputs", "expected the inputs of the manifest's module, found others");
  }
  const std::vector<Port> made = ports(module.outputs, false);
  if (!is_last_stage(manifest.mapping)) {
    if (made.size() != sent_by(plan).size()) refuse_plan("outputs", "expected those of the manifest's module");
    return;
  }
  const std::string_view first = first_output(module.kind).name;
  if (made.empty() || made.front().name != first || is_cached(module.outputs.front())) {
    throw EngineError("manifest.modules: expected " + std::string(first) + " as the first output of the module");
  }
}

void check_links(const Plan& plan, const Manifest& manifest) {
  const bool is_first = is_first_stage(manifest.mapping);
  if (plan.inputs.empty() != is_first)
    refuse_plan("inputs", "expected values from the previous stage in every stage but the first");
  for (const auto& [name, index] : plan.inputs) check_link(plan, manifest, "inputs." + name, index);
  if (is_last_stage(manifest.mapping)) return;
  const std::map<std::string, int> sent = sent_by(plan);
  if (sent.empty()) refuse_plan("outputs", "expected what the next stage receives, found none");
  for (const auto& [name, index] : sent) check_link(plan, manifest, "outputs." + name, index);
}

std::map<std::string, int> sent_by(const Plan& plan) {
  std::map<std::string, int> sent = plan.outputs;
  std::erase_if(sent, [&](const auto& output) {
    return plan.tensors[static_cast<std::size_t>(output.second)].kind != TensorKind::kArena;
  });
  return sent;
}

}  // namespace tl
