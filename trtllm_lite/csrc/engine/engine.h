// An engine: a mapped file that has been checked from the first byte to the last.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/container.h"
#include "engine/cuda_plan.h"
#include "engine/manifest.h"
#include "engine/mapped_file.h"
#include "engine/plan.h"
#include "engine/plan_check.h"

namespace tl {

struct EngineContents {
  Container container;
  Manifest manifest;
  std::variant<Plan, CudaPlan> plan;  // as the manifest's target says
  std::vector<ValueBound> value_bounds;
};

// Reads and checks a whole engine file; the result borrows `file`. Throws EngineError whatever the bytes are.
EngineContents read_engine(std::span<const std::byte> file, int num_threads);

class Engine {
 public:
  // Throws EngineError with the path, what was expected, what was found, and a remedy.
  explicit Engine(const std::string& path);

  const Manifest& manifest() const { return contents_.manifest; }
  // Throw EngineError if the engine was built for another kind of device.
  const Plan& plan() const;
  const CudaPlan& cuda_plan() const;
  const std::vector<ValueBound>& value_bounds() const { return contents_.value_bounds; }
  // The bytes of a tensor of kind weight; an engine without weights has none.
  std::span<const std::byte> weight(const std::string& tensor_name) const;
  std::span<const std::byte> cubin(const std::string& key) const;

  std::string_view manifest_json() const { return contents_.container.at("manifest").text(); }
  std::string_view plan_json() const { return contents_.container.at("plan").text(); }
  std::size_t file_bytes() const { return file_.bytes().size(); }
  std::size_t weight_bytes() const;

 private:
  MappedFile file_;
  EngineContents contents_;
};

}  // namespace tl
