// The kinds of device that engines run on: what turns an engine into an executor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batching/device_executor.h"
#include "network/network.h"

namespace tl {

// Options of all backends; each reads those that concern it.
struct OpenOptions {
  std::int64_t num_blocks = 0;                   // of the KV cache; 0 for the manifest's
  std::int64_t num_threads = 0;                  // of a CPU; 0 for all cores
  std::vector<std::string> library_directories;  // where a GPU's cuBLASLt may lie besides where the system finds it
  std::unique_ptr<Network> network;              // what runs the network of an engine of TensorRT
  const DeviceExecutor* features_of = nullptr;   // whose features an engine reads that drafts from them
  int num_loras = 0;                             // slots for adapters in a GPU's memory
};

// Loads the engine on a device of the kind that its manifest names, and borrows it. Throws what the constructors of
// CpuExecutor, CudaExecutor and NetworkExecutor throw, ArgumentError without a network or features where some are
// needed.
std::unique_ptr<DeviceExecutor> open_executor(const Engine& engine, OpenOptions options);

}  // namespace tl
