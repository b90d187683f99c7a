// The size of an executor's KV cache in blocks and bytes, and the blocks that a sequence needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "caches/kv_geometry.h"
#include "engine/engine.h"

namespace tl {

// `num_blocks`, or the engine's own number if that is 0. Throws LimitError.
std::int64_t resolve_num_blocks(const Engine& engine, std::int64_t num_blocks);
// The bytes of what a block holds of all layers, so that each layer's blocks are as far apart; and of what it holds of
// features of its own, which lie in an array of their own.
std::size_t layers_block_bytes(const Engine& engine);
std::size_t features_block_bytes(const Engine& engine);
// The bytes of `num_blocks` blocks. Throws LimitError if no memory can hold them.
std::size_t kv_cache_bytes(const Engine& engine, std::int64_t num_blocks);
// The blocks that a GPU has besides, to which padding rows write: as many as an entry of any table stands for.
std::int64_t spare_blocks(const Engine& engine);
std::vector<CacheSpec> cache_specs(const Manifest& manifest);
// The geometry for the longest steps for which the engine was built.
KvGeometry cache_geometry(const Manifest& manifest);

}  // namespace tl
