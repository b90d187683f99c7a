#include "caches/cached_inputs.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/module.h"
#include "errors.h"

namespace tl {
namespace {

std::string list_of(const std::vector<Port>& ports) {
  std::string list;
  for (const Port& port : ports) list += (list.empty() ? "" : " and ") + text_of(port);
  return list.empty() ? "none" : list;
}

}  // namespace

void check_kept(const Manifest& maker, const Manifest& reader) {
  const std::vector<Port> kept = ports(only_module(maker).outputs, true);
  const std::vector<Port> read = ports(only_module(reader).inputs, true);
  const auto is_kept = [&](const Port& port) {
    return std::ranges::any_of(kept, [&](const Port& other) { return is_same(port, other); });
  };
  if (std::ranges::all_of(read, is_kept)) return;
  throw ArgumentError("draft model: it reads " + list_of(read) + ", which the engine that it drafts for keeps, found " +
                      list_of(kept) +
                      "; run the engine that the head was made for: convert its model with --draft_model_dir and build "
                      "it again");
}

void check_source(const Engine& reader, std::int64_t num_blocks, const DeviceExecutor* source) {
  const std::string wanted = list_of(ports(only_module(reader.manifest()).inputs, true));
  if (source == nullptr) {
    throw ArgumentError("draft model: it reads " + wanted +
                        ", found no engine that keeps them; run the engine that the head was made for, with the "
                        "method eagle3 or mtp");
  }
  check_kept(source->engine().manifest(), reader.manifest());
  if (source->num_blocks() == num_blocks) return;
  throw ArgumentError("draft model: it reads " + wanted + " of " + std::to_string(num_blocks) + " blocks, found " +
                      std::to_string(source->num_blocks()) + " blocks");
}

}  // namespace tl
