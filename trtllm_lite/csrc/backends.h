// The kinds of device on which engines run; opens an executor for an engine.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/device_executor.h"
#include "network/network.h"

namespace tl {

// Options of all backends; each reads those that apply to it.
struct OpenOptions {
  std::int64_t num_blocks = 0;                   // KV cache blocks; 0 for the manifest's number
  std::int64_t num_threads = 0;                  // CPU threads; 0 for all cores
  std::vector<std::string> library_directories;  // where to look for cuBLASLt besides the system's search path
  std::unique_ptr<Network> network;              // runs the network of a TensorRT engine
  const DeviceExecutor* features_of = nullptr;   // the executor whose features a draft engine reads
  int num_loras = 0;                             // adapter slots in a GPU's memory
  std::size_t adapter_bytes = std::numeric_limits<std::size_t>::max();  // memory that they take beside the KV cache
  std::vector<int> devices;  // numbers of the GPUs, one for each rank; empty for the first ones
  double rank_timeout = 30;  // seconds that a rank may come to a collective after another
};

// Loads the engines of all ranks on devices of the kind that their manifest names; borrows them. Throws what the
// constructors of CpuExecutor, CudaExecutor and NetworkExecutor throw, and ArgumentError if a network or features are
// needed but not given.
std::unique_ptr<DeviceExecutor> open_executor(std::span<const Engine* const> ranks, OpenOptions options);

// Loads the ranks of one pipeline stage. Its steps take what the previous stage has computed for their tokens
// (StepRequest::received) and return what the next stage receives.
std::unique_ptr<DeviceExecutor> open_stage(std::span<const Engine* const> ranks, OpenOptions options);

}  // namespace tl
