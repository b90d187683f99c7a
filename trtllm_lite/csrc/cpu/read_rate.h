// How fast the threads of this machine read memory, for the floors that benchmarks are held against.
#pragma once

#include <cstddef>

namespace tl {

// Bytes per second at which `num_threads` threads together read the same `bytes` of memory over and over, which a cache
// may hold: the best pass of `passes` over each of several patterns (every thread its own run, or stripes dealt in
// turns; with and without software prefetch). Throws LimitError if there is no such memory.
double best_read_rate(std::size_t bytes, int num_threads, int passes);

}  // namespace tl
