#include "engine/checksums.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <thread>

#include "engine/crc32c.h"
#include "errors.h"

namespace tl {
namespace {

constexpr std::size_t kDigits = 8;
constexpr std::string_view kHeaderKey = "\"header_crc32c\":\"";

std::uint32_t parse_checksum(const JsonView& json) {
  const std::string& text = json.string();
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != kDigits || error != std::errc() || end != text.data() + kDigits) json.fail("8 hexadecimal digits");
  return value;
}

std::string hexadecimal(std::uint32_t value) {
  char digits[kDigits];
  for (std::size_t i = 0; i < kDigits; ++i) digits[i] = "0123456789abcdef"[value >> (28 - 4 * i) & 0xF];
  return {digits, kDigits};
}

void compare(const std::string& what, std::uint32_t expected, std::uint32_t found) {
  if (expected == found) return;
  throw EngineError(what + ": expected checksum " + hexadecimal(expected) + ", found " + hexadecimal(found) +
                    " (the file is damaged)");
}

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

// A part of an entry, whose checksum one thread computes.
struct Piece {
  std::span<const std::byte> bytes;
  std::uint32_t found = 0;
};

void compute(std::vector<Piece>& pieces, int num_threads) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      pieces[i].found = crc32c(pieces[i].bytes.data(), pieces[i].bytes.size());
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < num_threads; ++i) helpers.emplace_back(work);
  work();
}

}  // namespace

void check_header_checksum(std::string_view header, const JsonView& metadata) {
  const std::size_t key = header.find(kHeaderKey);
  if (key == std::string_view::npos || header.find(kHeaderKey, key + 1) != std::string_view::npos) {
    throw EngineError("header: expected one header_crc32c, found none or several");
  }
  const JsonView field = metadata.at("header_crc32c");
  const std::uint32_t expected = parse_checksum(field);
  const std::size_t digits = key + kHeaderKey.size();
  if (header.substr(digits, kDigits) != field.string()) field.fail("the header's own checksum");
  std::uint32_t found = crc32c(header.data(), digits);
  found = crc32c("00000000", kDigits, found);
  const std::string_view rest = header.substr(digits + kDigits);
  compare("header", expected, crc32c(rest.data(), rest.size(), found));
}

void read_checksums(const JsonView& checksums, Container& container) {
  const std::shared_ptr<const Json> json = parse_json(checksums.string(), checksums.path());
  const JsonView expected(*json, checksums.path());
  if (expected.members().size() != container.entries.size()) {
    throw EngineError(checksums.path() + ": expected " + std::to_string(container.entries.size()) +
                      " checksums, found " + std::to_string(expected.members().size()));
  }
  for (auto& [name, entry] : container.entries) entry.checksum = parse_checksum(expected.at(name));
}

void check_entry_checksums(const Container& container, int num_threads) {
  std::vector<Piece> pieces;
  for (const auto& [_, entry] : container.entries) {
    for (std::size_t at = 0; at < entry.bytes.size(); at += kPieceBytes) {
      pieces.push_back({entry.bytes.subspan(at, std::min(kPieceBytes, entry.bytes.size() - at))});
    }
  }
  compute(pieces, num_threads);
  auto piece = pieces.begin();
  for (const auto& [name, entry] : container.entries) {
    std::uint32_t found = crc32c(nullptr, 0);
    for (std::size_t at = 0; at < entry.bytes.size(); at += kPieceBytes, ++piece) {
      found = crc32c_of_both(found, piece->found, piece->bytes.size());
    }
    compare("entry " + name, entry.checksum, found);
  }
}

}  // namespace tl
