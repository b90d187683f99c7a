#include "engine/container.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "engine/checksums.h"
#include "engine/crc32c.h"
#include "engine/json_reader.h"
#include "engine/version.h"
#include "errors.h"

namespace tl {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxNameLength = 512;
constexpr std::int64_t kMaxOffset = std::int64_t{1} << 62;

std::uint64_t read_length(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  return length;
}

std::string_view read_header(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    throw EngineError("header: expected at least the 8 bytes that hold its length, found a file of " +
                      std::to_string(file.size()) + " bytes");
  }
  const std::uint64_t length = read_length(file);
  const std::uint64_t limit = std::min<std::uint64_t>(kMaxJsonBytes, file.size() - kLengthBytes);
  if (length > limit) {
    throw EngineError("header: expected at most " + std::to_string(limit) + " bytes, found a length of " +
                      std::to_string(length));
  }
  if ((kLengthBytes + length) % kAlignment != 0) {
    throw EngineError("header: expected padding to 64 bytes, found a length of " + std::to_string(length));
  }
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, length};
}

std::int64_t dtype_size(const JsonView& dtype) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kStoredNames); ++i) {
    if (dtype.string() == kStoredNames[i]) return item_size(static_cast<DType>(i));
    if (known.find(kStoredNames[i]) != std::string::npos) continue;  // several types are stored as bytes
    known += (known.empty() ? "" : ", ") + std::string(kStoredNames[i]);
  }
  dtype.fail("one of " + known);
}

Entry read_entry(const JsonView& json, std::span<const std::byte> data) {
  json.expect_keys({"dtype", "shape", "data_offsets"});
  Entry entry;
  entry.dtype = json.at("dtype").string();
  std::int64_t num_bytes = dtype_size(json.at("dtype"));
  for (const JsonView& extent : json.at("shape").elements()) {
    entry.shape.push_back(extent.integer(1, kMaxOffset));
    if (__builtin_mul_overflow(num_bytes, entry.shape.back(), &num_bytes)) extent.fail("an extent that fits the file");
  }
  const JsonView offsets = json.at("data_offsets");
  const std::vector<JsonView> bounds = offsets.elements();
  if (bounds.size() != 2) offsets.fail("a begin and an end");
  const auto size = static_cast<std::int64_t>(data.size());
  entry.offset = bounds[0].integer(0, size);
  const std::int64_t end = bounds[1].integer(entry.offset, size);
  if (end - entry.offset != num_bytes)
    bounds[1].fail("begin plus " + std::to_string(num_bytes) + " bytes of the shape");
  // Entries of dtype U8 may start at any offset; padding, for example, fills the bytes up to the next aligned offset.
  const bool is_weight = entry.dtype != "U8";
  if (is_weight && entry.offset % kAlignment != 0) bounds[0].fail("a multiple of 64");
  entry.bytes = data.subspan(static_cast<std::size_t>(entry.offset), static_cast<std::size_t>(num_bytes));
  return entry;
}

void check_coverage(const Container& container, std::int64_t data_size) {
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const auto& [name, entry] : container.entries) {
    ranges.emplace_back(entry.offset, entry.offset + static_cast<std::int64_t>(entry.bytes.size()));
  }
  std::ranges::sort(ranges);
  std::int64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != covered) {
      throw EngineError("header: expected an entry at byte " + std::to_string(covered) + ", found the next at " +
                        std::to_string(begin));
    }
    covered = end;
  }
  if (covered != data_size) {
    throw EngineError("expected " + std::to_string(covered) + " bytes of data, found " + std::to_string(data_size) +
                      (data_size < covered ? " (truncated)" : ""));
  }
}

}  // namespace

const Entry& Container::at(const std::string& name) const {
  const auto found = entries.find(name);
  if (found == entries.end()) throw EngineError("header: expected an entry \"" + name + "\", found none");
  return found->second;
}

Container read_container(std::span<const std::byte> file) {
  const std::string_view header = read_header(file);
  const std::shared_ptr<const Json> json = parse_json(header, "header");
  const JsonView view(*json, "header");
  const JsonView metadata = view.at("__metadata__");
  // The version is checked first, because a newer format may differ in everything else.
  check_format(metadata);
  check_header_checksum(header, metadata);

  Container container;
  container.plan_version = metadata.at("plan_version").string();
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header.size());
  for (const auto& [name, entry] : view.members()) {
    if (name == "__metadata__") continue;
    if (name.size() > kMaxNameLength) entry.fail("a name of at most " + std::to_string(kMaxNameLength) + " bytes");
    container.entries.emplace(name, read_entry(entry, data));
  }
  check_coverage(container, static_cast<std::int64_t>(data.size()));
  read_checksums(metadata.at("checksums"), container);
  return container;
}

}  // namespace tl
