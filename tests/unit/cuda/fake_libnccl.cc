// libnccl.so.2 for machines without a GPU: ranks of one process meet on the streams of the fake driver.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace {

constexpr int kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6, kSum = 0, kInt32 = 2, kFloat32 = 7;

struct Id {
  char bytes[128];
};
struct Meeting;
// What ranks of one id have in common; those of a pair meet for what one sends the other.
struct Group {
  Meeting* meeting;
  std::map<std::pair<int, int>, Meeting*> pairs;
};
struct Communicator {
  Group* group;
  int rank, count;
};
// What a rank has for a collective.
struct Operands {
  const char* x;
  char* y;
  std::size_t count;
  int type, root;
};
using Together = void (*)(void* const* each, int count);

std::mutex& mutex() {
  static std::mutex mutex;
  return mutex;
}
std::int64_t& num_alive() {
  static std::int64_t communicators = 0;
  return communicators;
}
std::int64_t& num_aborted() {
  static std::int64_t communicators = 0;
  return communicators;
}

int number_from(const char* variable) {
  const char* set = std::getenv(variable);
  return set == nullptr ? -1 : std::atoi(set);
}

std::size_t size_of(int type) {
  const std::map<int, std::size_t> sizes{{0, 1}, {1, 1}, {2, 4}, {3, 4}, {4, 8},
                                         {5, 8}, {6, 2}, {7, 4}, {8, 8}, {9, 2}};
  return sizes.at(type);
}

const Operands& of(void* const* each, int rank) { return *static_cast<const Operands*>(each[rank]); }

template <typename T>
void add(void* const* each, int count) {
  for (std::size_t i = 0; i < of(each, 0).count; ++i) {
    T sum{};
    for (int rank = 0; rank < count; ++rank) sum += reinterpret_cast<const T*>(of(each, rank).x)[i];
    for (int rank = 0; rank < count; ++rank) reinterpret_cast<T*>(of(each, rank).y)[i] = sum;
  }
}

// Ranks that do not agree give garbage on a GPU, or wait for ever.
bool agree(void* const* each, int count) {
  for (int rank = 1; rank < count; ++rank) {
    const Operands &one = of(each, 0), &other = of(each, rank);
    if (one.count != other.count || one.type != other.type || one.root != other.root) return false;
  }
  return true;
}

void all_reduce(void* const* each, int count) {
  if (!agree(each, count)) std::abort();
  of(each, 0).type == kInt32 ? add<std::int32_t>(each, count) : add<float>(each, count);
}

void all_gather(void* const* each, int count) {
  if (!agree(each, count)) std::abort();
  const std::size_t bytes = of(each, 0).count * size_of(of(each, 0).type);
  for (int to = 0; to < count; ++to) {
    for (int from = 0; from < count; ++from) {
      std::memcpy(of(each, to).y + static_cast<std::size_t>(from) * bytes, of(each, from).x, bytes);
    }
  }
}

void broadcast(void* const* each, int count) {
  if (!agree(each, count)) std::abort();
  const Operands& root = of(each, of(each, 0).root);
  for (int to = 0; to < count; ++to) std::memmove(of(each, to).y, root.x, root.count * size_of(root.type));
}

// The first of two is who sends.
void pass(void* const* each, int count) {
  if (!agree(each, count)) std::abort();
  std::memcpy(of(each, 1).y, of(each, 0).x, of(each, 0).count * size_of(of(each, 0).type));
}

}  // namespace

extern "C" {

Meeting* fake_meeting();
int fake_meet(void* stream, Meeting* meeting, int rank, int count, void* own, Together together);
void fake_abort(Meeting* meeting);

// For tests: how many communicators there are, and how many were aborted.
std::int64_t fake_communicators() { return num_alive(); }
std::int64_t fake_aborted() { return num_aborted(); }

int ncclGetVersion(int* version) { return *version = 22700, 0; }
const char* ncclGetErrorString(int result) { return result == kRemoteError ? "a remote process exited" : "no success"; }
int ncclGetUniqueId(Id* id) {
  static std::int64_t number = 0;
  const std::lock_guard lock(mutex());
  *id = {};
  return std::memcpy(id->bytes, &++number, sizeof(number)), 0;
}
int ncclCommInitRank(Communicator** communicator, int count, Id id, int rank) {
  static std::map<std::string, Group> groups;
  if (number_from("FAKE_UNCONNECTED_RANK") == rank) return kSystemError;
  const std::lock_guard lock(mutex());
  Group& group = groups[std::string(id.bytes, sizeof(id.bytes))];
  if (group.meeting == nullptr) group.meeting = fake_meeting();
  ++num_alive();
  return *communicator = new Communicator{&group, rank, count}, 0;
}
int ncclCommDestroy(Communicator* communicator) {
  const std::lock_guard lock(mutex());
  --num_alive();
  return delete communicator, 0;
}
int ncclCommAbort(Communicator* communicator) {
  const std::lock_guard lock(mutex());
  fake_abort(communicator->group->meeting);
  --num_alive();
  ++num_aborted();
  return delete communicator, 0;
}
int ncclCommGetAsyncError(Communicator* communicator, int* error) {
  return *error = number_from("FAKE_REMOTE_ERROR_RANK") == communicator->rank ? kRemoteError : 0, 0;
}
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
int ncclAllReduce(const char* x, char* y, std::size_t count, int type, int op, Communicator* ranks, void* stream) {
  if (op != kSum || (type != kInt32 && type != kFloat32)) return kInvalidArgument;
  auto* own = new Operands{x, y, count, type, 0};
  return fake_meet(stream, ranks->group->meeting, ranks->rank, ranks->count, own, all_reduce);
}
int ncclAllGather(const char* x, char* y, std::size_t count, int type, Communicator* ranks, void* stream) {
  auto* own = new Operands{x, y, count, type, 0};
  return fake_meet(stream, ranks->group->meeting, ranks->rank, ranks->count, own, all_gather);
}
int ncclBroadcast(const char* x, char* y, std::size_t count, int type, int root, Communicator* ranks, void* stream) {
  auto* own = new Operands{x, y, count, type, root};
  return fake_meet(stream, ranks->group->meeting, ranks->rank, ranks->count, own, broadcast);
}
int ncclSend(const char* x, std::size_t count, int type, int peer, Communicator* ranks, void* stream) {
  const std::lock_guard lock(mutex());
  Meeting*& pair = ranks->group->pairs[{ranks->rank, peer}];
  if (pair == nullptr) pair = fake_meeting();
  return fake_meet(stream, pair, 0, 2, new Operands{x, nullptr, count, type, 0}, pass);
}
int ncclRecv(char* y, std::size_t count, int type, int peer, Communicator* ranks, void* stream) {
  const std::lock_guard lock(mutex());
  Meeting*& pair = ranks->group->pairs[{peer, ranks->rank}];
  if (pair == nullptr) pair = fake_meeting();
  return fake_meet(stream, pair, 1, 2, new Operands{nullptr, y, count, type, 0}, pass);
}

}  // extern "C"
