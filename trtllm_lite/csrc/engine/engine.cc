#include "engine/engine.h"

#include <algorithm>
#include <future>
#include <set>
#include <string_view>

#include "engine/checksums.h"
#include "engine/json_reader.h"
#include "engine/plugins.h"
#include "engine/version.h"
#include "errors.h"
#include "host/cpu_count.h"

namespace tl {
namespace {

constexpr std::string_view kWeightPrefix = "weights.";
constexpr std::string_view kCubinPrefix = "cubin.";
constexpr std::string_view kNetworkPrefix = "network.";

JsonView view_of(const Entry& entry, const Json& json, const std::string& name) {
  if (entry.dtype != "U8") throw EngineError("entry " + name + ": expected dtype U8, found " + entry.dtype);
  return {json, name};
}

// The entries of kernels and networks that the plan names.
std::set<std::string> images_of(const Plan& plan) {
  std::set<std::string> names;
  for (const CompiledKernel& kernel : plan.kernels) {
    for (const auto& [arch, key] : kernel.cubins) names.insert(std::string(kCubinPrefix) + key);
  }
  for (const Program& program : plan.programs) {
    for (const Instruction& instruction : program.instructions) {
      const auto* network = std::get_if<NetworkInstruction>(&instruction);
      if (network != nullptr) names.insert(std::string(kNetworkPrefix) + network->network);
    }
  }
  return names;
}

// Throws unless every entry is used: the two documents, weights and images that the plan names, padding.
void check_entry_names(const EngineContents& contents) {
  const std::set<std::string> images = images_of(contents.plan);
  std::size_t num_planned = 0;
  for (const PlanTensor& tensor : contents.plan.tensors) {
    num_planned += tensor.kind == TensorKind::kWeight && !contents.manifest.stripped;
  }
  std::size_t num_weights = 0;
  for (const auto& [name, entry] : contents.container.entries) {
    if (name.starts_with(kWeightPrefix)) {
      ++num_weights;
    } else if (name != "manifest" && name != "plan" && !name.starts_with("padding.") && !images.contains(name)) {
      throw EngineError("header: expected manifest, plan, weights, kernels, networks and padding, found an entry " +
                        name);
    }
  }
  if (num_weights == num_planned) return;
  throw EngineError("header: expected the " + std::to_string(num_planned) + " weights of the plan, found " +
                    std::to_string(num_weights));
}

template <typename Read>
auto with_path(const std::string& path, Read read) {
  try {
    return read();
  } catch (const UnsupportedVersion& error) {
    throw UnsupportedVersion(path + ": " + error.what());
  } catch (const MissingPlugin& error) {
    throw MissingPlugin(path + ": " + error.what());
  } catch (const EngineError& error) {
    throw EngineError(path + ": " + error.what() + "; copy the engine again, or build it again (trtllm-lite build)");
  }
}

// Reads what an engine says of itself, whose bytes may still turn out to be damaged.
void read_records(EngineContents& contents) {
  const Entry& manifest = contents.container.at("manifest");
  const std::shared_ptr<const Json> manifest_json = parse_json(manifest.text(), "manifest");
  contents.manifest = read_manifest(view_of(manifest, *manifest_json, "manifest"));
  if (contents.manifest.target.kind == TargetKind::kCpu) require_plugins(contents.manifest.plugins);
  const Entry& plan = contents.container.at("plan");
  const std::shared_ptr<const Json> plan_json = parse_json(plan.text(), "plan");
  const JsonView plan_view = view_of(plan, *plan_json, "plan");
  contents.plan = read_plan(plan_view);
  check_entry_names(contents);
  contents.value_bounds = check_plan(contents.plan, contents.manifest, contents.container);
}

}  // namespace

EngineContents read_engine(std::span<const std::byte> file, int num_threads) {
  EngineContents contents;
  contents.container = read_container(file);
  check_plan_version(contents.container.plan_version);
  auto intact = std::async(std::launch::async, [&] { check_entry_checksums(contents.container, num_threads); });
  try {
    read_records(contents);
  } catch (const EngineError&) {
    intact.get();  // damage is the cause, if there is any
    throw;
  }
  intact.get();
  return contents;
}

Engine::Engine(const std::string& path)
    : file_(path), contents_(with_path(path, [this] { return read_engine(file_.bytes(), resolve_num_threads(0)); })) {}

const Plan& Engine::plan_for(TargetKind target) const {
  const TargetKind found = manifest().target.kind;
  if (found == target) return plan();
  throw EngineError("expected an engine built for " + std::string(to_string(target)) + ", found one for " +
                    std::string(to_string(found)) + "; build it again (trtllm-lite build --target " +
                    (target == TargetKind::kCpu ? "cpu" : "sm_90") + ")");
}

std::span<const std::byte> Engine::weight(const std::string& tensor_name) const {
  return contents_.container.at(std::string(kWeightPrefix) + tensor_name).bytes;
}

std::span<const std::byte> Engine::cubin(const std::string& key) const {
  return contents_.container.at(std::string(kCubinPrefix) + key).bytes;
}

std::span<const std::byte> Engine::network(const std::string& key) const {
  return contents_.container.at(std::string(kNetworkPrefix) + key).bytes;
}

std::size_t Engine::weight_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, entry] : contents_.container.entries) {
    if (name.starts_with(kWeightPrefix)) bytes += entry.bytes.size();
  }
  return bytes;
}

}  // namespace tl
