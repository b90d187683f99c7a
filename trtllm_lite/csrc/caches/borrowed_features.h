// Features: values that an engine caches for each token besides keys and values, and that a draft head reads.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "executor/device_executor.h"

namespace tl {

// The type of the features' elements. The engine must keep or borrow features.
DType feature_dtype(const Engine& engine);

// Throws ArgumentError unless `from`, which may be null, keeps the features that `head` borrows and has `num_blocks`
// blocks.
void check_lender(const Engine& head, std::int64_t num_blocks, const DeviceExecutor* from);

}  // namespace tl
