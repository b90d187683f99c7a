// Features: what an engine keeps of each token beside keys and values, for a head that drafts from them.
#pragma once

#include <cstdint>

#include "batching/device_executor.h"
#include "engine/engine.h"

namespace tl {

// The type of their elements; the engine keeps or borrows some.
DType feature_dtype(const Engine& engine);

// Throws ArgumentError unless `from`, which may be null, keeps the features that `head` borrows, in as many blocks.
void check_lender(const Engine& head, std::int64_t num_blocks, const DeviceExecutor* from);

}  // namespace tl
