// The part of NCCL that the runtime uses. The library is found at run time, as the driver is, and needed only if ranks
// cannot access each other's memory. Names, signatures and values are those of the NCCL reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device/device.h"
#include "cuda/device/driver.h"
#include "engine/vocabulary.h"

namespace tl::cuda {

using NcclCommunicator = Opaque<struct NcclCommunicatorTag>*;

// ncclUniqueId: identifies a communicator. One rank makes it and gives it to all others.
struct NcclId {
  char bytes[128];
};

constexpr int kNcclSum = 0;         // ncclRedOp_t
constexpr int kNcclInProgress = 7;  // ncclResult_t

// X(member, symbol, parameters)
#define TL_NCCL_FUNCTIONS(X)                                                                                         \
  X(version, "ncclGetVersion", (int* version))                                                                       \
  X(make_id, "ncclGetUniqueId", (NcclId * id))                                                                       \
  X(communicator_create, "ncclCommInitRank", (NcclCommunicator * communicator, int num_ranks, NcclId id, int rank))  \
  X(communicator_destroy, "ncclCommDestroy", (NcclCommunicator communicator))                                        \
  X(communicator_abort, "ncclCommAbort", (NcclCommunicator communicator))                                            \
  X(communicator_error, "ncclCommGetAsyncError", (NcclCommunicator communicator, int* error))                        \
  X(group_start, "ncclGroupStart", ())                                                                               \
  X(group_end, "ncclGroupEnd", ())                                                                                   \
  X(all_reduce, "ncclAllReduce",                                                                                     \
    (DevicePtr x, DevicePtr y, std::size_t count, int type, int op, NcclCommunicator communicator, Stream stream))   \
  X(all_gather, "ncclAllGather",                                                                                     \
    (DevicePtr x, DevicePtr y, std::size_t count, int type, NcclCommunicator communicator, Stream stream))           \
  X(broadcast, "ncclBroadcast",                                                                                      \
    (DevicePtr x, DevicePtr y, std::size_t count, int type, int root, NcclCommunicator communicator, Stream stream)) \
  X(send, "ncclSend",                                                                                                \
    (DevicePtr x, std::size_t count, int type, int peer, NcclCommunicator communicator, Stream stream))              \
  X(receive, "ncclRecv",                                                                                             \
    (DevicePtr x, std::size_t count, int type, int peer, NcclCommunicator communicator, Stream stream))

struct Nccl {
#define TL_MEMBER(member, symbol, parameters) int(*member) parameters;
  TL_NCCL_FUNCTIONS(TL_MEMBER)
#undef TL_MEMBER
  const char* (*error_string)(int result);

  // Throws DeviceError with the library's message unless `result` is success.
  void check(int result, const std::string& what) const;
};

// The library's code for a type.
int nccl_type(DType dtype);

// The process's NCCL: the first found in `directories`, then by the system's search. Throws DeviceError.
const Nccl& nccl(const std::vector<std::string>& directories);

}  // namespace tl::cuda
