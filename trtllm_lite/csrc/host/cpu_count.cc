#include "host/cpu_count.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "errors.h"

namespace tl {
namespace {

constexpr int kMaxThreads = 1024;

int num_cores_of_affinity() {
#ifdef __linux__
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

// A container limited to 2 CPUs on a machine of 64 sees all 64 in its affinity mask; 64 threads that wait for each
// other with the time of 2 CPUs would be very slow.
int num_cores_of_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "max 100000" or "200000 100000": microseconds per period
  double quota = 0;
  double period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return kMaxThreads;
  return static_cast<int>(std::clamp(quota / period + 0.5, 1.0, static_cast<double>(kMaxThreads)));
}

}  // namespace

int resolve_num_threads(std::int64_t num_threads) {
  if (num_threads == 0) return std::clamp(std::min(num_cores_of_affinity(), num_cores_of_quota()), 1, kMaxThreads);
  if (num_threads > 0 && num_threads <= kMaxThreads) return static_cast<int>(num_threads);
  throw ArgumentError("num_threads: expected 1 to " + std::to_string(kMaxThreads) + ", or 0 for all cores, found " +
                      std::to_string(num_threads));
}

}  // namespace tl
