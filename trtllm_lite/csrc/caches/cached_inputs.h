// Inputs of a module that another module keeps in its paged cache, such as the features that a drafting head reads.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "executor/device_executor.h"

namespace tl {

// Throws ArgumentError unless `source`, which may be null, keeps every cached input of `reader` and has `num_blocks`
// blocks.
void check_source(const Engine& reader, std::int64_t num_blocks, const DeviceExecutor* source);

// Throws ArgumentError unless `maker` keeps every cached input of `reader`.
void check_kept(const Manifest& maker, const Manifest& reader);

}  // namespace tl
