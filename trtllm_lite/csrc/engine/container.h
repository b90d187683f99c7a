// The container of an engine: a safetensors file whose every byte is accounted for and checksummed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/vocabulary.h"

namespace tl {

struct Entry {
  std::string dtype;  // as safetensors spells it: "F32", "U8", …
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;     // from the start of the data section
  std::uint32_t checksum = 0;  // CRC-32C that the bytes should have
  std::span<const std::byte> bytes;

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

struct Container {
  std::map<std::string, Entry> entries;
  std::string plan_version;

  // Throws EngineError if there is no such entry.
  const Entry& at(const std::string& name) const;
};

// Checks header bounds and checksum, format and version, dtypes, shapes, offsets (aligned, in bounds, without gaps or
// overlaps), but not the checksums of entries. The result borrows `file`. Throws EngineError.
Container read_container(std::span<const std::byte> file);

}  // namespace tl
