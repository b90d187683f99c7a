// What the runtime needs of the manifest: target, limits and the shape of the KV cache.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/cuda_plan.h"

namespace tl {

class JsonView;

enum class TargetKind : std::uint8_t { kCpu, kCuda };

struct Target {
  TargetKind kind = TargetKind::kCpu;
  // Of NVIDIA GPUs only.
  std::vector<std::string> archs;          // that it has kernels for
  CudaDType dtype = CudaDType::kBFloat16;  // of matrix products and the KV cache
  bool stripped = false;                   // without weights: for benchmarks, on random ones
};

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
  Target target;
  std::int64_t vocab_size = 0;
  Limits limits;
  KvCacheConfig kv_cache;
};

// Throws EngineError. `json` may hold more than this: it is for humans and for Python, too.
Manifest read_manifest(const JsonView& json);

}  // namespace tl
