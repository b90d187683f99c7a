#include "engine/engine.h"

#include <string_view>

#include "cpu_count.h"
#include "engine/json_reader.h"
#include "engine/version.h"
#include "errors.h"

namespace tl {
namespace {

constexpr std::string_view kWeightPrefix = "weights.";

JsonView view_of(const Entry& entry, const Json& json, const std::string& name) {
  if (entry.dtype != "U8") throw EngineError("entry " + name + ": expected dtype U8, found " + entry.dtype);
  return {json, name};
}

// Every entry has a use: the two documents, weights that the plan names, padding.
void check_entry_names(const Container& container, const Plan& plan) {
  std::size_t num_weights = 0;
  for (const auto& [name, entry] : container.entries) {
    if (name.starts_with(kWeightPrefix)) {
      ++num_weights;
    } else if (name != "manifest" && name != "plan" && !name.starts_with("padding.")) {
      throw EngineError("header: expected manifest, plan, weights and padding, found an entry " + name);
    }
  }
  std::size_t num_planned = 0;
  for (const PlanTensor& tensor : plan.tensors) num_planned += tensor.kind == TensorKind::kWeight ? 1 : 0;
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
  } catch (const EngineError& error) {
    throw EngineError(path + ": " + error.what() + "; copy the engine again, or build it again (trtllm-lite build)");
  }
}

}  // namespace

EngineContents read_engine(std::span<const std::byte> file, int num_threads) {
  EngineContents contents;
  contents.container = read_container(file, num_threads);
  check_plan_version(contents.container.plan_version);
  const Entry& manifest = contents.container.at("manifest");
  const Json manifest_json = parse_json(manifest.text(), "manifest");
  contents.manifest = read_manifest(view_of(manifest, manifest_json, "manifest"));
  const Entry& plan = contents.container.at("plan");
  const Json plan_json = parse_json(plan.text(), "plan");
  contents.plan = read_plan(view_of(plan, plan_json, "plan"));
  check_entry_names(contents.container, contents.plan);
  contents.value_bounds = check_plan(contents.plan, contents.manifest, contents.container);
  return contents;
}

Engine::Engine(const std::string& path)
    : file_(path), contents_(with_path(path, [this] { return read_engine(file_.bytes(), resolve_num_threads(0)); })) {}

std::span<const std::byte> Engine::weight(const PlanTensor& tensor) const {
  return contents_.container.at("weights." + tensor.name).bytes;
}

std::size_t Engine::weight_bytes() const {
  std::size_t bytes = 0;
  for (const PlanTensor& tensor : plan().tensors) {
    if (tensor.kind == TensorKind::kWeight) bytes += weight(tensor).size();
  }
  return bytes;
}

}  // namespace tl
