// A GPU, and owners of what is allocated on it. Every owner borrows the driver, which lives as long as the process, and
// needs the device's context to be current, even in its destructor: see Device::make_current. A forked child process
// frees nothing, because the device belongs to its parent.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/driver.h"
#include "host/home_process.h"

namespace tl::cuda {

struct DeviceMemory {
  std::size_t free = 0;
  std::size_t total = 0;
};

// Facts about a GPU that the driver gives without a context.
struct DeviceFacts {
  std::string name;
  std::string arch;  // such as sm_90
  std::size_t memory = 0;
};

// All GPUs that this process may use, by number; empty without a driver. Creates no context. Throws DeviceError if the
// driver fails.
std::vector<DeviceFacts> visible_devices();

class Device {
 public:
  // Retains the primary context of GPU `index` and makes it current. Throws DeviceError if there is no such GPU.
  explicit Device(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Makes the context current for the calling thread; cheap if it is current already. Throws DeviceError, or
  // EngineError in a forked child process.
  void make_current() const;
  // make_current() for destructors. Returns false if it fails: then nothing on the device needs to be waited for.
  bool try_make_current() const noexcept;

  // Lets kernels on this device access the memory of the other. Throws DeviceError if the devices are not connected.
  void enable_access_to(const Device& other) const;

  // The number of the GPU.
  int index() const { return ordinal_; }
  const std::string& name() const { return name_; }
  int capability_major() const { return major_; }
  int capability_minor() const { return minor_; }
  int num_sms() const { return num_sms_; }
  int max_shared_bytes() const { return max_shared_bytes_; }  // the most that a block may request
  std::string arch() const;
  DeviceMemory memory() const;
  // A CUdevice_attribute.
  int attribute(int which) const;

 private:
  HomeProcess home_;
  Ordinal ordinal_ = 0;
  Context context_ = nullptr;
  std::string name_;
  int major_ = 0, minor_ = 0, num_sms_ = 0, max_shared_bytes_ = 0;
};

// An owner of a handle. Its destructor calls the driver function `Free` on the handle and ignores errors.
template <typename Handle, auto Free>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != Handle{} && home_.is_this()) (driver().*Free)(handle_);
  }

  Handle get() const { return handle_; }

 private:
  Handle handle_{};
  HomeProcess home_;
};

using OwnedModule = Owner<Module, &Driver::module_unload>;
using OwnedStream = Owner<Stream, &Driver::stream_destroy>;
using OwnedEvent = Owner<Event, &Driver::event_destroy>;
using OwnedGraph = Owner<Graph, &Driver::graph_destroy>;
using OwnedGraphExec = Owner<GraphExec, &Driver::graph_exec_destroy>;

// The graph of what `enqueue` enqueues on the stream, which does not run meanwhile. An exception of `enqueue` ends the
// capture. Other threads may do what they want at the same time.
template <typename Enqueue>
OwnedGraph captured(Stream stream, const std::string& what, const Enqueue& enqueue) {
  driver().check(driver().stream_begin_capture(stream, kThreadLocalCapture), what);
  Graph graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    driver().stream_end_capture(stream, &graph);
    const OwnedGraph abandoned(graph);
    throw;
  }
  driver().check(driver().stream_end_capture(stream, &graph), what);
  return OwnedGraph(graph);
}

OwnedStream make_stream();
// Makes a stream whose kernels are begun before those of other streams.
OwnedStream make_urgent_stream();
OwnedEvent make_event();

// Device memory; empty if `bytes` is 0. Throws LimitError if there is too little; its message says what the memory is
// for (`what`) and what to do (`remedy`).
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(const Device& device, std::size_t bytes, const std::string& what, const std::string& remedy);

  DevicePtr address() const { return memory_.get(); }
  std::size_t size() const { return bytes_; }

 private:
  Owner<DevicePtr, &Driver::memory_free> memory_;
  std::size_t bytes_ = 0;
};

// Throws the LimitError of a device that has less than `bytes` free, as `memory` says: for what (`what`), and what to
// do
// (`remedy`).
[[noreturn]] void throw_out_of_memory(const DeviceMemory& memory, const Device& device, std::size_t bytes,
                                      const std::string& what, const std::string& remedy);

// Page-locked host memory, which the device accesses directly. Throws LimitError.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(std::size_t bytes, const std::string& what, const std::string& remedy);

  std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
  std::size_t size() const { return bytes_; }

 private:
  Owner<void*, &Driver::host_free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace tl::cuda
