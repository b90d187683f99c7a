// Finds how many threads to run.
#pragma once

#include <cstdint>

namespace tl {

// 0 becomes the number of cores this process may use (affinity mask and control-group quota, not the whole machine);
// a negative or absurd number is an ArgumentError.
int resolve_num_threads(std::int64_t num_threads);

}  // namespace tl
