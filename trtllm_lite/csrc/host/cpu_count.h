// Finds how many threads to run.
#pragma once

#include <cstdint>

namespace tl {

// Resolves 0 to the number of cores that this process may use (by affinity mask and control-group quota, not the whole
// machine). Throws ArgumentError for a negative or excessive number.
int resolve_num_threads(std::int64_t num_threads);

}  // namespace tl
