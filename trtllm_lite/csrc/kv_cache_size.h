// How many blocks an executor's KV cache has, and how many bytes they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/engine.h"

namespace tl {

// The engine's own number for 0. Throws LimitError.
std::int64_t resolve_num_blocks(const Engine& engine, std::int64_t num_blocks);
// Of so many blocks. Throws LimitError if no memory can hold them.
std::size_t kv_cache_bytes(const Engine& engine, std::int64_t num_blocks);

}  // namespace tl
