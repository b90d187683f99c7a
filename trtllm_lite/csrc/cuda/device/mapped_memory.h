// Device memory behind addresses that stay: physical memory is mapped and unmapped in slabs, so that it can move to
// another use while kernels, tables of blocks and captured graphs keep their addresses.
//
// A slab is one allocation of sixteen pages (32 MiB), which move in one call. An allocation for each page would make
// the smallest moves, but on an H200 kernels then read and write at 3.3 TB/s instead of 4.5, and loading 60 GiB takes
// 1.6 seconds instead of 0.1.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuda/device/device.h"

namespace tl::cuda {

constexpr std::size_t kSlabPages = 16;
// The bytes of a slab on a device. Throws DeviceError if it cannot map memory.
std::size_t slab_bytes(const Device& device);

// Bytes of physical memory, unmapped or on their way.
class Slab {
 public:
  Slab() = default;
  // Takes memory of the device. Returns nothing if it has too little. `bytes`: a multiple of the device's pages.
  static std::optional<Slab> allocate(const Device& device, std::size_t bytes);

  std::size_t size() const { return bytes_; }
  PhysicalMemory get() const { return memory_.get(); }

 private:
  Owner<PhysicalMemory, &Driver::physical_release> memory_;
  std::size_t bytes_ = 0;
};

class MappedMemory {
 public:
  // Sizes of the last slab.
  enum class Tail {
    kPages,  // as many pages as the bytes need
    kSlab,   // a whole slab
  };

  // Reserves addresses for `bytes`, behind which nothing is mapped yet. Messages say what the memory is for (`what`),
  // and what to do if there is too little (`remedy`). Throws DeviceError if the device cannot map memory, LimitError if
  // it has less in all.
  MappedMemory(const Device& device, std::size_t bytes, Tail tail, std::string what, std::string remedy);
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  DevicePtr address() const { return address_; }
  // The bytes asked for.
  std::size_t size() const { return bytes_; }
  // Any thread may ask.
  std::size_t num_mapped_bytes() const { return num_mapped_bytes_; }
  // The size of all slabs but the last, which may be smaller.
  std::size_t slab_bytes() const { return slab_bytes_; }
  int num_slabs() const { return static_cast<int>(slabs_.size()); }
  // The bytes of a slab: a multiple of pages.
  std::size_t bytes_of(int slab) const;
  bool is_mapped(int slab) const { return slabs_[static_cast<std::size_t>(slab)].has_value(); }

  // Lets a GPU that can access this one's memory reach what is mapped, and what will be.
  void open_to(const Device& peer);
  // Takes new memory for all slabs, none of which is mapped. Throws LimitError if the device has too little.
  void map_all();
  // Throws the LimitError for a device that has too little memory.
  [[noreturn]] void throw_out_of_memory() const;
  // Maps `memory`, which has the bytes of the slab, and leaves it empty. If that fails, it throws DeviceError and
  // changes nothing.
  void map(int slab, Slab& memory);
  // No work in flight may reach the slab.
  Slab unmap(int slab);
  DevicePtr address_of(int slab) const { return address_ + static_cast<std::size_t>(slab) * slab_bytes_; }

 private:
  const Device& device_;
  const std::string what_, remedy_;
  HomeProcess home_;
  std::size_t bytes_ = 0, slab_bytes_ = 0, reserved_bytes_ = 0;
  DeviceMemory memory_of_device_;  // before any of it was taken
  DevicePtr address_ = 0;
  std::vector<MemoryAccess> access_;  // of this device, then of those it is open to
  std::vector<std::optional<Slab>> slabs_;
  std::atomic<std::size_t> num_mapped_bytes_ = 0;
};

}  // namespace tl::cuda
