#include "engine/manifest.h"

#include "engine/json_reader.h"
#include "engine/op_schema.h"

namespace tl {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

Limits read_limits(const JsonView& json) {
  json.expect_keys({"max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens"});
  const auto read = [&json](const char* key) { return json.at(key).integer(1, kMaxExtent - 1); };
  return {read("max_batch_size"), read("max_input_len"), read("max_seq_len"), read("max_num_tokens")};
}

Target read_target(const JsonView& manifest) {
  const JsonView json = manifest.at("target");
  const std::string& kind = json.at("kind").string();
  if (kind == "cpu") return {};
  if (kind != "cuda") json.at("kind").fail("\"cpu\" or \"cuda\", the targets that this runtime executes");
  Target target;
  target.kind = TargetKind::kCuda;
  target.stripped = manifest.at("stripped").boolean();
  for (const JsonView& arch : json.at("archs").elements()) target.archs.push_back(arch.string());
  const std::string& dtype = json.at("dtype").string();
  if (dtype != "bfloat16" && dtype != "float16") json.at("dtype").fail("\"bfloat16\" or \"float16\"");
  target.dtype = dtype == "float16" ? CudaDType::kFloat16 : CudaDType::kBFloat16;
  return target;
}

KvCacheConfig read_kv_cache(const JsonView& json, const Target& target) {
  const auto read = [&json](const char* key) { return json.at(key).integer(1, kMaxExtent - 1); };
  const std::string dtype(target.kind == TargetKind::kCpu ? "float32" : to_string(target.dtype));
  if (json.at("dtype").string() != dtype) json.at("dtype").fail("\"" + dtype + "\"");
  return {read("tokens_per_block"), read("num_blocks"), read("num_layers"),
          json.at("bytes_per_block").integer(1, kMaxBytes)};
}

}  // namespace

Manifest read_manifest(const JsonView& json) {
  Manifest manifest;
  manifest.target = read_target(json);
  manifest.vocab_size = json.at("model").at("vocab_size").integer(1, kMaxExtent - 1);
  manifest.limits = read_limits(json.at("limits"));
  manifest.kv_cache = read_kv_cache(json.at("kv_cache"), manifest.target);
  return manifest;
}

}  // namespace tl
