// The kinds of device that engines run on: what turns an engine into an executor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  std::vector<int> devices;                      // GPUs by their numbers, one for each rank; empty for the first ones
  double rank_timeout = 30;                      // seconds by which a rank may come to a collective after another
};

// Loads the engines of all ranks on devices of the kind that their manifest names, and borrows them. Throws what the
// constructors of CpuExecutor, CudaExecutor and NetworkExecutor throw, ArgumentError without a network or features
// where some are needed.
std::unique_ptr<DeviceExecutor> open_executor(std::span<const Engine* const> ranks, OpenOptions options);

// The same for the ranks of one stage of a pipeline, whose steps need what the stage before makes of their tokens
// (StepRequest::received), and come to what the next one receives.
std::unique_ptr<DeviceExecutor> open_stage(std::span<const Engine* const> ranks, OpenOptions options);

}  // namespace tl
