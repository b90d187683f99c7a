#include "cuda/device/mapped_memory.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace tl::cuda {
namespace {

// Memory that other processes may map, where the driver allows it.
PhysicalProperties properties_of(const Device& device) {
  PhysicalProperties properties{.device = device.index()};
  if (device.attribute(kExportsFileDescriptors) != 0) properties.exported_as = kFileDescriptor;
  return properties;
}

std::size_t page_bytes(const Device& device) {
  if (device.attribute(kVirtualMemoryManagement) == 0) {
    throw DeviceError(device.name() +
                      ": expected a GPU and a driver that support virtual memory management (cuMemMap), found none; "
                      "update the driver, or use another GPU");
  }
  std::size_t bytes = 0;
  const PhysicalProperties properties = properties_of(device);
  driver().check(driver().memory_granularity(&bytes, &properties, kMinimumGranularity), "reading the size of a page");
  return bytes;
}

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

std::size_t slab_bytes(const Device& device) { return kSlabPages * page_bytes(device); }

std::optional<Slab> Slab::allocate(const Device& device, std::size_t bytes) {
  Slab slab;
  PhysicalMemory memory = 0;
  const PhysicalProperties properties = properties_of(device);
  const Result result = driver().physical_create(&memory, bytes, &properties, 0);
  if (result == kOutOfMemory) return std::nullopt;
  driver().check(result, "reserving memory of ", device.name());
  slab.memory_ = Owner<PhysicalMemory, &Driver::physical_release>(memory);
  slab.bytes_ = bytes;
  return slab;
}

MappedMemory::MappedMemory(const Device& device, std::size_t bytes, Tail tail, std::string what, std::string remedy)
    : device_(device),
      what_(std::move(what)),
      remedy_(std::move(remedy)),
      bytes_(bytes),
      access_{{.device = device.index()}} {
  if (bytes == 0) return;
  const std::size_t page = page_bytes(device);
  slab_bytes_ = kSlabPages * page;
  memory_of_device_ = device.memory();
  if (bytes > memory_of_device_.total) throw_out_of_memory();
  reserved_bytes_ = round_up(bytes, tail == Tail::kPages ? page : slab_bytes_);
  driver().check(driver().address_reserve(&address_, reserved_bytes_, 0, 0, 0), "reserving addresses for ", what_);
  slabs_.resize((reserved_bytes_ + slab_bytes_ - 1) / slab_bytes_);
}

MappedMemory::~MappedMemory() {
  if (address_ == 0 || !home_.is_this()) return;
  for (int slab = 0; slab < num_slabs(); ++slab) {
    if (is_mapped(slab)) driver().memory_unmap(address_of(slab), bytes_of(slab));
  }
  driver().address_free(address_, reserved_bytes_);
}

std::size_t MappedMemory::bytes_of(int slab) const {
  return std::min(slab_bytes_, reserved_bytes_ - static_cast<std::size_t>(slab) * slab_bytes_);
}

void MappedMemory::open_to(const Device& peer) {
  access_.push_back({.device = peer.index()});
  for (int slab = 0; slab < num_slabs(); ++slab) {
    if (!is_mapped(slab)) continue;
    const Result result = driver().memory_set_access(address_of(slab), bytes_of(slab), &access_.back(), 1);
    driver().check(result, "giving another GPU access to memory for ", what_);
  }
}

void MappedMemory::map_all() {
  for (int slab = 0; slab < num_slabs(); ++slab) {
    std::optional<Slab> memory = Slab::allocate(device_, bytes_of(slab));
    if (!memory) throw_out_of_memory();
    map(slab, *memory);
  }
}

void MappedMemory::throw_out_of_memory() const {
  cuda::throw_out_of_memory(memory_of_device_, device_, bytes_, what_, remedy_);
}

void MappedMemory::map(int slab, Slab& memory) {
  const DevicePtr address = address_of(slab);
  const std::size_t bytes = bytes_of(slab);
  if (memory.size() != bytes || is_mapped(slab)) {
    throw DeviceError(what_ + ": expected memory of " + std::to_string(bytes) + " bytes for an empty slab, found " +
                      std::to_string(memory.size()));
  }
  driver().check(driver().memory_map(address, bytes, 0, memory.get(), 0), "mapping memory for ", what_);
  if (const Result result = driver().memory_set_access(address, bytes, access_.data(), access_.size()); result != 0) {
    driver().memory_unmap(address, bytes);
    driver().check(result, "giving access to memory for ", what_);
  }
  slabs_[static_cast<std::size_t>(slab)] = std::exchange(memory, Slab());
  num_mapped_bytes_ += bytes;
}

Slab MappedMemory::unmap(int slab) {
  driver().check(driver().memory_unmap(address_of(slab), bytes_of(slab)), "unmapping memory of ", what_);
  num_mapped_bytes_ -= bytes_of(slab);
  return *std::exchange(slabs_[static_cast<std::size_t>(slab)], std::nullopt);
}

}  // namespace tl::cuda
