#include "engine/engine.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "cpu_count.h"
#include "engine/cuda_plan_check.h"
#include "engine/json_reader.h"
#include "engine/version.h"
#include "errors.h"

namespace tl {
namespace {

constexpr std::string_view kWeightPrefix = "weights.";
constexpr std::string_view kCubinPrefix = "cubin.";

JsonView view_of(const Entry& entry, const Json& json, const std::string& name) {
  if (entry.dtype != "U8") throw EngineError("entry " + name + ": expected dtype U8, found " + entry.dtype);
  return {json, name};
}

template <typename Tensors, typename Kind>
std::size_t count_kind(const Tensors& tensors, Kind kind) {
  return static_cast<std::size_t>(std::ranges::count(tensors, kind, [](const auto& tensor) { return tensor.kind; }));
}

// Every entry has a use: the two documents, weights and kernels that the plan names, padding.
void check_entry_names(const EngineContents& contents) {
  const auto* cuda_plan = std::get_if<CudaPlan>(&contents.plan);
  std::set<std::string> cubins;
  std::size_t num_planned = 0;
  if (cuda_plan == nullptr) {
    num_planned = count_kind(std::get<Plan>(contents.plan).tensors, TensorKind::kWeight);
  } else {
    if (!contents.manifest.target.stripped) num_planned = count_kind(cuda_plan->tensors, CudaTensorKind::kWeight);
    for (const CudaKernel& kernel : cuda_plan->kernels) {
      for (const auto& [arch, key] : kernel.cubins) cubins.insert(std::string(kCubinPrefix) + key);
    }
  }
  std::size_t num_weights = 0;
  for (const auto& [name, entry] : contents.container.entries) {
    if (name.starts_with(kWeightPrefix)) {
      ++num_weights;
    } else if (name != "manifest" && name != "plan" && !name.starts_with("padding.") && !cubins.contains(name)) {
      throw EngineError("header: expected manifest, plan, weights, kernels and padding, found an entry " + name);
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
  const JsonView plan_view = view_of(plan, plan_json, "plan");
  if (contents.manifest.target.kind == TargetKind::kCuda) {
    contents.plan = read_cuda_plan(plan_view);
    check_entry_names(contents);
    check_cuda_plan(std::get<CudaPlan>(contents.plan), contents.manifest, contents.container);
  } else {
    contents.plan = read_plan(plan_view);
    check_entry_names(contents);
    contents.value_bounds = check_plan(std::get<Plan>(contents.plan), contents.manifest, contents.container);
  }
  return contents;
}

Engine::Engine(const std::string& path)
    : file_(path), contents_(with_path(path, [this] { return read_engine(file_.bytes(), resolve_num_threads(0)); })) {}

const Plan& Engine::plan() const {
  if (const auto* plan = std::get_if<Plan>(&contents_.plan)) return *plan;
  throw EngineError("expected an engine built for cpu, found one for cuda; build it again for cpu (trtllm-lite build)");
}

const CudaPlan& Engine::cuda_plan() const {
  if (const auto* plan = std::get_if<CudaPlan>(&contents_.plan)) return *plan;
  throw EngineError(
      "expected an engine built for cuda, found one for cpu; build it again (trtllm-lite build --target sm_90)");
}

std::span<const std::byte> Engine::weight(const std::string& tensor_name) const {
  return contents_.container.at(std::string(kWeightPrefix) + tensor_name).bytes;
}

std::span<const std::byte> Engine::cubin(const std::string& key) const {
  return contents_.container.at(std::string(kCubinPrefix) + key).bytes;
}

std::size_t Engine::weight_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [name, entry] : contents_.container.entries) {
    if (name.starts_with(kWeightPrefix)) bytes += entry.bytes.size();
  }
  return bytes;
}

}  // namespace tl
