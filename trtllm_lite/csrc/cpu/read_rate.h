// How fast the threads of this machine read memory, which bounds how fast a step can be.
#pragma once

#include <cstddef>

namespace tl {

// Bytes per second at which `num_threads` threads together read the same `bytes` of memory repeatedly (possibly from a
// cache): the best of `passes` passes over each of several patterns (a contiguous part per thread or interleaved
// stripes; with and without software prefetch). Throws LimitError if memory is short.
double best_read_rate(std::size_t bytes, int num_threads, int passes);

}  // namespace tl
