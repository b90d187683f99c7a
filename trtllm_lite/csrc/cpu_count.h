// How many threads to run.
#pragma once

namespace tl {

// 0 becomes the number of cores this process may use (affinity mask and control-group quota, not the whole machine);
// a negative or absurd number is an ArgumentError.
int resolve_num_threads(int num_threads);

}  // namespace tl
