#include "caches/kv_cache_size.h"

#include <algorithm>
#include <string>

#include "engine/module.h"
#include "errors.h"

namespace tl {

std::int64_t resolve_num_blocks(const Engine& engine, std::int64_t num_blocks) {
  if (num_blocks == 0) return engine.manifest().kv_cache.num_blocks;
  if (num_blocks > 0 && num_blocks < kMaxExtent) return num_blocks;
  throw LimitError("num_blocks: expected 1 to " + std::to_string(kMaxExtent - 1) +
                   ", or 0 for the engine's own, found " + std::to_string(num_blocks));
}

std::size_t layers_block_bytes(const Engine& engine) {
  return static_cast<std::size_t>(engine.manifest().kv_cache.bytes_per_block) - features_block_bytes(engine);
}

std::size_t features_block_bytes(const Engine& engine) {
  std::int64_t bytes = 0;
  for (const Port& port : ports(only_module(engine.manifest()).outputs, true)) bytes += block_bytes(port);
  return static_cast<std::size_t>(bytes);
}

std::size_t kv_cache_bytes(const Engine& engine, std::int64_t num_blocks) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(num_blocks, engine.manifest().kv_cache.bytes_per_block, &bytes)) {
    throw LimitError("num_blocks: expected a KV cache that fits in memory, found " + std::to_string(num_blocks) +
                     " blocks; reserve fewer");
  }
  return static_cast<std::size_t>(bytes);
}

std::int64_t spare_blocks(const Engine& engine) {
  std::int64_t blocks = 0;
  for (const CacheGroup& group : engine.manifest().kv_cache.groups) blocks = std::max(blocks, group.blocks);
  return blocks;
}

std::vector<CacheSpec> cache_specs(const Manifest& manifest) {
  std::vector<CacheSpec> specs;
  for (const CacheGroup& group : manifest.kv_cache.groups) {
    specs.push_back({group.kind, static_cast<int>(group.window), static_cast<int>(group.blocks)});
  }
  return specs;
}

KvGeometry cache_geometry(const Manifest& manifest) {
  return {static_cast<int>(manifest.kv_cache.tokens_per_block), cache_specs(manifest),
          static_cast<int>(manifest.limits.max_num_tokens)};
}

}  // namespace tl
