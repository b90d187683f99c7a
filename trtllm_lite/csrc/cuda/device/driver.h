// The part of the CUDA driver API that the runtime uses. libcuda.so.1 comes with the GPU's driver and is opened with
// the first device, so this code also builds and loads on machines without it. Names, signatures and values are those
// of the CUDA Driver API reference; a symbol's suffix is its ABI version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tl::cuda {

using Result = int;  // 0 is success
using DevicePtr = std::uint64_t;
using Ordinal = int;
using PhysicalMemory = std::uint64_t;  // CUmemGenericAllocationHandle

template <typename Tag>
struct Opaque;
using Context = Opaque<struct ContextTag>*;
using Module = Opaque<struct ModuleTag>*;
using Function = Opaque<struct FunctionTag>*;
using Stream = Opaque<struct StreamTag>*;
using Event = Opaque<struct EventTag>*;
using Graph = Opaque<struct GraphTag>*;
using GraphExec = Opaque<struct GraphExecTag>*;

constexpr Result kOutOfMemory = 2;
constexpr Result kNoDevice = 100;
constexpr Result kNotReady = 600;
constexpr Result kPeerAccessAlreadyEnabled = 704;

constexpr unsigned kHostMemory = 1;  // CUmemorytype
constexpr unsigned kDeviceMemory = 2;
constexpr int kMultiprocessorCount = 16;  // CUdevice_attribute
constexpr int kMaxSharedBytesOfBlock = 97;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMaxDynamicSharedBytes = 8;            // CUfunction_attribute
constexpr int kProgrammaticStreamSerialization = 6;  // CUlaunchAttributeID
constexpr unsigned kNonBlockingStream = 1;           // CUstream_flags
constexpr int kGreaterPriority = -1;                 // of a stream; others have 0
constexpr int kThreadLocalCapture = 1;               // CUstreamCaptureMode
constexpr std::uintptr_t kParamBufferPointer = 1;    // CU_LAUNCH_PARAM_BUFFER_POINTER
constexpr std::uintptr_t kParamBufferSize = 2;       // CU_LAUNCH_PARAM_BUFFER_SIZE
constexpr int kTensorMapBytes = 0;                   // CUtensorMapDataType
constexpr int kTensorMapFloat16 = 6;                 // CUtensorMapDataType
constexpr int kTensorMapBFloat16 = 9;
constexpr int kTensorMapNotInterleaved = 0;     // CUtensorMapInterleave
constexpr int kTensorMapSwizzle128Bytes = 3;    // CUtensorMapSwizzle
constexpr int kTensorMapPromoteTo256Bytes = 3;  // CUtensorMapL2promotion
constexpr int kTensorMapZerosOutOfBounds = 0;   // CUtensorMapFloatOOBfill

constexpr int kVirtualMemoryManagement = 102;  // CUdevice_attribute
constexpr int kExportsFileDescriptors = 103;   // CUdevice_attribute
constexpr int kPinnedMemory = 1;               // CUmemAllocationType
constexpr int kFileDescriptor = 1;             // CUmemAllocationHandleType
constexpr int kLocationDevice = 1;             // CUmemLocationType
constexpr int kReadWrite = 3;                  // CUmemAccess_flags
constexpr int kMinimumGranularity = 0;         // CUmemAllocationGranularity_flags

// CUmemAllocationProp: physical memory of a device.
struct PhysicalProperties {
  int type = kPinnedMemory;
  int exported_as = 0;  // CUmemAllocationHandleType
  int location_type = kLocationDevice;
  Ordinal device = 0;
  void* windows_security = nullptr;
  unsigned char flags[8] = {};
};
static_assert(sizeof(PhysicalProperties) == 32);

// CUmemAccessDesc: what a device may do with mapped memory.
struct MemoryAccess {
  int location_type = kLocationDevice;
  Ordinal device = 0;
  int flags = kReadWrite;
};

// CUtensorMap: opaque bytes that the driver encodes.
struct alignas(64) TensorMap {
  std::uint64_t words[16];
};

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    int programmatic_allowed;
    char bytes[64];
  } value;
};

struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};

// One end of a Copy3d: a host or device pointer to slices of `height` rows each. Rows begin `pitch` bytes apart.
struct CopyEnd {
  std::size_t x = 0, y = 0, z = 0, level = 0;  // where to begin
  unsigned memory_type = 0;                    // CUmemorytype
  const void* host = nullptr;
  DevicePtr device = 0;
  const void* array = nullptr;
  const void* reserved = nullptr;
  std::size_t pitch = 0, height = 0;
};

// CUDA_MEMCPY3D: copies `depth` slices of `height` rows of `width` bytes.
struct Copy3d {
  CopyEnd from, to;
  std::size_t width = 0, height = 0, depth = 0;
};
static_assert(sizeof(Copy3d) == 200);

// X(member, symbol, parameters)
#define TL_CUDA_DRIVER_FUNCTIONS(X)                                                                                   \
  X(init, "cuInit", (unsigned flags))                                                                                 \
  X(driver_version, "cuDriverGetVersion", (int* version))                                                             \
  X(error_name, "cuGetErrorName", (Result result, const char** name))                                                 \
  X(error_string, "cuGetErrorString", (Result result, const char** text))                                             \
  X(device_count, "cuDeviceGetCount", (int* count))                                                                   \
  X(device_get, "cuDeviceGet", (Ordinal * device, int index))                                                         \
  X(device_name, "cuDeviceGetName", (char* name, int size, Ordinal device))                                           \
  X(device_memory, "cuDeviceTotalMem_v2", (std::size_t* bytes, Ordinal device))                                       \
  X(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, Ordinal device))                            \
  X(context_retain, "cuDevicePrimaryCtxRetain", (Context * context, Ordinal device))                                  \
  X(context_release, "cuDevicePrimaryCtxRelease_v2", (Ordinal device))                                                \
  X(context_set_current, "cuCtxSetCurrent", (Context context))                                                        \
  X(can_access_peer, "cuDeviceCanAccessPeer", (int* can, Ordinal device, Ordinal peer))                               \
  X(enable_peer_access, "cuCtxEnablePeerAccess", (Context peer, unsigned flags))                                      \
  X(memory_info, "cuMemGetInfo_v2", (std::size_t* free, std::size_t* total))                                          \
  X(memory_alloc, "cuMemAlloc_v2", (DevicePtr * pointer, std::size_t bytes))                                          \
  X(memory_free, "cuMemFree_v2", (DevicePtr pointer))                                                                 \
  X(memory_granularity, "cuMemGetAllocationGranularity",                                                              \
    (std::size_t* bytes, const PhysicalProperties* properties, int option))                                           \
  X(address_reserve, "cuMemAddressReserve",                                                                           \
    (DevicePtr * address, std::size_t bytes, std::size_t alignment, DevicePtr wanted, unsigned long long flags))      \
  X(address_free, "cuMemAddressFree", (DevicePtr address, std::size_t bytes))                                         \
  X(physical_create, "cuMemCreate",                                                                                   \
    (PhysicalMemory * memory, std::size_t bytes, const PhysicalProperties* properties, unsigned long long flags))     \
  X(physical_release, "cuMemRelease", (PhysicalMemory memory))                                                        \
  X(memory_map, "cuMemMap",                                                                                           \
    (DevicePtr address, std::size_t bytes, std::size_t offset, PhysicalMemory memory, unsigned long long flags))      \
  X(memory_unmap, "cuMemUnmap", (DevicePtr address, std::size_t bytes))                                               \
  X(memory_set_access, "cuMemSetAccess",                                                                              \
    (DevicePtr address, std::size_t bytes, const MemoryAccess* access, std::size_t count))                            \
  X(host_alloc, "cuMemHostAlloc", (void** pointer, std::size_t bytes, unsigned flags))                                \
  X(host_free, "cuMemFreeHost", (void* pointer))                                                                      \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2", (DevicePtr to, const void* from, std::size_t bytes, Stream stream))       \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2", (void* to, DevicePtr from, std::size_t bytes, Stream stream))               \
  X(copy_on_device, "cuMemcpyDtoDAsync_v2", (DevicePtr to, DevicePtr from, std::size_t bytes, Stream stream))         \
  X(copy_slices, "cuMemcpy3DAsync_v2", (const Copy3d* copy, Stream stream))                                           \
  X(fill_bytes, "cuMemsetD8Async", (DevicePtr to, unsigned char value, std::size_t count, Stream stream))             \
  X(fill_words, "cuMemsetD32Async", (DevicePtr to, unsigned value, std::size_t count, Stream stream))                 \
  X(module_load, "cuModuleLoadData", (Module * module, const void* image))                                            \
  X(module_unload, "cuModuleUnload", (Module module))                                                                 \
  X(module_function, "cuModuleGetFunction", (Function * function, Module module, const char* name))                   \
  X(function_set, "cuFuncSetAttribute", (Function function, int attribute, int value))                                \
  X(tensor_map_encode, "cuTensorMapEncodeTiled",                                                                      \
    (TensorMap * map, int data_type, unsigned rank, DevicePtr address, const std::uint64_t* extents,                  \
     const std::uint64_t* strides, const unsigned* box, const unsigned* element_strides, int interleave, int swizzle, \
     int promotion, int fill))                                                                                        \
  X(launch, "cuLaunchKernelEx", (const LaunchConfig* config, Function function, void** parameters, void** extra))     \
  X(stream_create, "cuStreamCreate", (Stream * stream, unsigned flags))                                               \
  X(stream_create_with_priority, "cuStreamCreateWithPriority", (Stream * stream, unsigned flags, int priority))       \
  X(stream_destroy, "cuStreamDestroy_v2", (Stream stream))                                                            \
  X(stream_synchronize, "cuStreamSynchronize", (Stream stream))                                                       \
  X(stream_wait, "cuStreamWaitEvent", (Stream stream, Event event, unsigned flags))                                   \
  X(launch_host_function, "cuLaunchHostFunc", (Stream stream, void (*function)(void*), void* argument))               \
  X(stream_begin_capture, "cuStreamBeginCapture_v2", (Stream stream, int mode))                                       \
  X(stream_end_capture, "cuStreamEndCapture", (Stream stream, Graph * graph))                                         \
  X(event_create, "cuEventCreate", (Event * event, unsigned flags))                                                   \
  X(event_destroy, "cuEventDestroy_v2", (Event event))                                                                \
  X(event_record, "cuEventRecord", (Event event, Stream stream))                                                      \
  X(event_query, "cuEventQuery", (Event event))                                                                       \
  X(stream_query, "cuStreamQuery", (Stream stream))                                                                   \
  X(event_synchronize, "cuEventSynchronize", (Event event))                                                           \
  X(event_elapsed, "cuEventElapsedTime", (float* milliseconds, Event start, Event end))                               \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (GraphExec * exec, Graph graph, unsigned long long flags))      \
  X(graph_destroy, "cuGraphDestroy", (Graph graph))                                                                   \
  X(graph_exec_destroy, "cuGraphExecDestroy", (GraphExec exec))                                                       \
  X(graph_launch, "cuGraphLaunch", (GraphExec exec, Stream stream))

struct Driver {
#define TL_MEMBER(member, symbol, parameters) Result(*member) parameters;
  TL_CUDA_DRIVER_FUNCTIONS(TL_MEMBER)
#undef TL_MEMBER
  // cuFuncGetParamInfo, which is new in CUDA 12.4; null if the driver is older.
  Result (*function_parameter)(Function function, std::size_t index, std::size_t* offset, std::size_t* bytes);

  // Throws DeviceError with the driver's message unless `result` is success. `what`, followed by `name`, says what was
  // attempted.
  void check(Result result, std::string_view what, std::string_view name = {}) const;
  // Whether all work on the stream before the event is done. Throws DeviceError if some of it failed.
  bool reached(Event event) const;
};

// The process's driver, initialised. Throws DeviceError if there is none or it lacks a function.
const Driver& driver();

// The number of GPUs that this process may use; 0 without a driver. Throws DeviceError if the driver fails.
int count_devices();

}  // namespace tl::cuda
