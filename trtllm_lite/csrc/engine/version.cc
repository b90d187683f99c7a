#include "engine/version.h"

#include "engine/vocabulary.h"
#include "errors.h"

namespace tl {
namespace {

void check_version(const std::string& what, std::int64_t supported, const std::string& found) {
  if (found == std::to_string(supported)) return;
  throw UnsupportedVersion(what + ": expected version " + std::to_string(supported) + ", found version " +
                           found.substr(0, 20) +
                           "; install the trtllm_lite release that wrote this engine, or build it again with this one "
                           "(trtllm-lite build)");
}

}  // namespace

void check_format(const JsonView& metadata) {
  if (metadata.at("format").string() != kFormat) metadata.at("format").fail("\"" + std::string(kFormat) + "\"");
  check_version("engine format", kFormatVersion, metadata.at("format_version").string());
}

void check_plan_version(const std::string& found) { check_version("engine plan", kPlanVersion, found); }

}  // namespace tl
