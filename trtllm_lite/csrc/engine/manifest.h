// What the runtime needs of the manifest: limits and the shape of the KV cache.
#pragma once

#include <cstdint>

namespace tl {

class JsonView;

struct Limits {
  std::int64_t max_batch_size = 0;
  std::int64_t max_input_len = 0;
  std::int64_t max_seq_len = 0;
  std::int64_t max_num_tokens = 0;
};

struct KvCacheConfig {
  std::int64_t tokens_per_block = 0;
  std::int64_t num_blocks = 0;
  std::int64_t num_layers = 0;
  std::int64_t bytes_per_block = 0;  // keys and values of all layers
};

struct Manifest {
  std::int64_t vocab_size = 0;
  Limits limits;
  KvCacheConfig kv_cache;
};

// Throws EngineError. `json` may hold more than this: it is for humans and for Python, too.
Manifest read_manifest(const JsonView& json);

}  // namespace tl
