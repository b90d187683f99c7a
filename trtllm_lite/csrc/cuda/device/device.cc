#include "cuda/device/device.h"

#include "errors.h"

namespace tl::cuda {
namespace {

std::string mebibytes(std::size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

Ordinal open_device(int index) {
  Ordinal ordinal = 0;
  driver().check(driver().device_get(&ordinal, index), "opening GPU " + std::to_string(index));
  return ordinal;
}

std::string name_of(Ordinal ordinal) {
  char name[256] = {};
  driver().check(driver().device_name(name, sizeof(name) - 1, ordinal), "reading the name of a GPU");
  return name;
}

int attribute_of(Ordinal ordinal, int which, const std::string& name) {
  int value = 0;
  driver().check(driver().device_attribute(&value, which, ordinal), "reading attributes of " + name);
  return value;
}

std::string arch_of(int major, int minor) { return "sm_" + std::to_string(major) + std::to_string(minor); }

}  // namespace

std::vector<DeviceFacts> visible_devices() {
  std::vector<DeviceFacts> found;
  for (int index = 0, count = count_devices(); index < count; ++index) {
    const Ordinal ordinal = open_device(index);
    DeviceFacts facts{.name = name_of(ordinal), .arch = "", .memory = 0};
    facts.arch = arch_of(attribute_of(ordinal, kComputeCapabilityMajor, facts.name),
                         attribute_of(ordinal, kComputeCapabilityMinor, facts.name));
    driver().check(driver().device_memory(&facts.memory, ordinal), "reading the memory of " + facts.name);
    found.push_back(std::move(facts));
  }
  return found;
}

Device::Device(int index) {
  int count = 0;
  driver().check(driver().device_count(&count), "counting GPUs");
  if (index < 0 || index >= count) {
    throw DeviceError("GPU " + std::to_string(index) + ": expected one of " + std::to_string(count) +
                      " that the driver shows; choose another, or check CUDA_VISIBLE_DEVICES");
  }
  ordinal_ = open_device(index);
  name_ = name_of(ordinal_);
  major_ = attribute_of(ordinal_, kComputeCapabilityMajor, name_);
  minor_ = attribute_of(ordinal_, kComputeCapabilityMinor, name_);
  num_sms_ = attribute_of(ordinal_, kMultiprocessorCount, name_);
  max_shared_bytes_ = attribute_of(ordinal_, kMaxSharedBytesOfBlock, name_);
  driver().check(driver().context_retain(&context_, ordinal_), "creating a context on " + name_);
  make_current();
}

Device::~Device() {
  if (home_.is_this()) driver().context_release(ordinal_);
}

void Device::make_current() const {
  home_.check();
  driver().check(driver().context_set_current(context_), "using the context of ", name_);
}

bool Device::try_make_current() const noexcept {
  return home_.is_this() && driver().context_set_current(context_) == 0;
}

void Device::enable_access_to(const Device& other) const {
  int can = 0;
  driver().check(driver().can_access_peer(&can, ordinal_, other.ordinal_), "asking for peer access");
  if (can == 0) {
    throw DeviceError("GPU " + std::to_string(ordinal_) + " (" + name_ + "): expected access to the memory of GPU " +
                      std::to_string(other.ordinal_) +
                      ", found no way to it (NVLink or PCIe peer to peer); choose others with device_ids, or build "
                      "the engine with --allreduce_strategy NCCL, or for one GPU");
  }
  make_current();
  const Result result = driver().enable_peer_access(other.context_, 0);
  if (result != kPeerAccessAlreadyEnabled) driver().check(result, "giving access to the memory of ", other.name_);
}

DeviceMemory Device::memory() const {
  make_current();
  DeviceMemory memory;
  driver().check(driver().memory_info(&memory.free, &memory.total), "reading the memory of " + name_);
  return memory;
}

int Device::attribute(int which) const { return attribute_of(ordinal_, which, name_); }

std::string Device::arch() const { return arch_of(major_, minor_); }

OwnedStream make_stream() {
  Stream stream = nullptr;
  driver().check(driver().stream_create(&stream, kNonBlockingStream), "creating a stream");
  return OwnedStream(stream);
}

OwnedStream make_urgent_stream() {
  Stream stream = nullptr;
  driver().check(driver().stream_create_with_priority(&stream, kNonBlockingStream, kGreaterPriority),
                 "creating a stream");
  return OwnedStream(stream);
}

OwnedEvent make_event() {
  Event event = nullptr;
  driver().check(driver().event_create(&event, 0), "creating an event");
  return OwnedEvent(event);
}

DeviceBuffer::DeviceBuffer(const Device& device, std::size_t bytes, const std::string& what, const std::string& remedy)
    : bytes_(bytes) {
  if (bytes == 0) return;
  DevicePtr pointer = 0;
  const Result result = driver().memory_alloc(&pointer, bytes);
  if (result == kOutOfMemory) throw_out_of_memory(device.memory(), device, bytes, what, remedy);
  driver().check(result, "reserving " + mebibytes(bytes) + " for " + what);
  memory_ = Owner<DevicePtr, &Driver::memory_free>(pointer);
}

void throw_out_of_memory(const DeviceMemory& memory, const Device& device, std::size_t bytes, const std::string& what,
                         const std::string& remedy) {
  throw LimitError(what + ": expected " + mebibytes(bytes) + " free on " + device.name() + ", found " +
                   mebibytes(memory.free) + " of " + mebibytes(memory.total) + "; " + remedy);
}

PinnedBuffer::PinnedBuffer(std::size_t bytes, const std::string& what, const std::string& remedy) : bytes_(bytes) {
  if (bytes == 0) return;
  void* pointer = nullptr;
  const Result result = driver().host_alloc(&pointer, bytes, 0);
  if (result == kOutOfMemory) {
    throw LimitError(what + ": expected " + mebibytes(bytes) + " of host memory that can be page-locked, found less; " +
                     remedy);
  }
  driver().check(result, "reserving " + mebibytes(bytes) + " of host memory for " + what);
  memory_ = Owner<void*, &Driver::host_free>(pointer);
}

}  // namespace tl::cuda
