// An engine: a mapped file, checked from the first byte to the last.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checks/plan_check.h"
#include "engine/container.h"
#include "engine/mapped_file.h"
#include "engine/records.h"

namespace tl {

struct EngineContents {
  Container container;
  Manifest manifest;
  Plan plan;
  std::vector<ValueBound> value_bounds;
};

// Reads and checks a whole engine file; the result borrows `file`. Throws EngineError for any invalid bytes.
EngineContents read_engine(std::span<const std::byte> file, int num_threads);

class Engine {
 public:
  // Throws EngineError whose message has the path, what was expected, what was found, and a remedy.
  explicit Engine(const std::string& path);

  const Manifest& manifest() const { return contents_.manifest; }
  const Plan& plan() const { return contents_.plan; }
  // The plan. Throws EngineError if the engine was built for another kind of device.
  const Plan& plan_for(TargetKind target) const;
  const std::vector<ValueBound>& value_bounds() const { return contents_.value_bounds; }
  // The bytes of a tensor of the kind weight. An engine without weights has none.
  std::span<const std::byte> weight(const std::string& tensor_name) const;
  std::span<const std::byte> cubin(const std::string& key) const;
  // The network that another library serialized, under the key of a NetworkInstruction.
  std::span<const std::byte> network(const std::string& key) const;

  // Throws EngineError if the file has been written since it was checked.
  void check_unchanged() const { file_.check_unchanged(); }

  std::string_view manifest_json() const { return contents_.container.at("manifest").text(); }
  std::string_view plan_json() const { return contents_.container.at("plan").text(); }
  std::size_t file_bytes() const { return file_.bytes().size(); }
  std::size_t weight_bytes() const;

 private:
  MappedFile file_;
  EngineContents contents_;
};

}  // namespace tl
