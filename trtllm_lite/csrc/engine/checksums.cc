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

struct Job {
  const std::string* name;
  std::span<const std::byte> bytes;
  std::uint32_t expected;
  std::uint32_t found = 0;
};

void compute(std::vector<Job>& jobs, int num_threads) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      jobs[i].found = crc32c(jobs[i].bytes.data(), jobs[i].bytes.size());
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

void check_entry_checksums(const Container& container, const JsonView& checksums, int num_threads) {
  const std::shared_ptr<const Json> json = parse_json(checksums.string(), checksums.path());
  const JsonView expected(*json, checksums.path());
  if (expected.members().size() != container.entries.size()) {
    throw EngineError(checksums.path() + ": expected " + std::to_string(container.entries.size()) +
                      " checksums, found " + std::to_string(expected.members().size()));
  }
  std::vector<Job> jobs;
  for (const auto& [name, entry] : container.entries) {
    jobs.push_back({&name, entry.bytes, parse_checksum(expected.at(name))});
  }
  // The longest entries come first, so that no thread ends with a long one alone.
  std::ranges::stable_sort(jobs, std::greater<>(), [](const Job& job) { return job.bytes.size(); });
  compute(jobs, num_threads);
  for (const Job& job : jobs) compare("entry " + *job.name, job.expected, job.found);
}

}  // namespace tl
