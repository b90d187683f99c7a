#include "engine/manifest.h"

#include "engine/json_reader.h"
#include "op_schema.h"

namespace tl {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

Limits read_limits(const JsonView& json) {
  json.expect_keys({"max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"});
  const auto read = [&json](const char* key) { return json.at(key).integer(1, kMaxExtent - 1); };
  return {read("max_batch_size"), read("max_input_len"), read("max_seq_len"), read("max_num_tokens")};
}

KvCacheConfig read_kv_cache(const JsonView& json) {
  const auto read = [&json](const char* key) { return json.at(key).integer(1, kMaxExtent - 1); };
  if (json.at("dtype").string() != "float32") json.at("dtype").fail("\"float32\"");
  return {read("tokens_per_block"), read("num_blocks"), read("num_layers"),
          json.at("bytes_per_block").integer(1, kMaxBytes)};
}

}  // namespace

Manifest read_manifest(const JsonView& json) {
  const JsonView kind = json.at("target").at("kind");
  if (kind.string() != "cpu") kind.fail("\"cpu\", the target that this runtime executes");
  Manifest manifest;
  manifest.vocab_size = json.at("model").at("vocab_size").integer(1, kMaxExtent - 1);
  manifest.limits = read_limits(json.at("limits"));
  manifest.kv_cache = read_kv_cache(json.at("kv_cache"));
  return manifest;
}

}  // namespace tl
