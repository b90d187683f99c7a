// libnccl.so.2 for machines without a GPU: ranks of one process meet on the streams of the fake driver, and what one of
// two processes sends the other goes through a socket.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fake_streams.h"

namespace {

using fake::Lock, fake::Stream;

constexpr int kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6, kSum = 0, kInt32 = 2, kFloat32 = 7;

struct Id {
  char bytes[128];
};
struct Collective;
// State shared by the ranks with the same id.
struct Group {
  Id id;
  Collective* collective;
};
// Ends of a connection; what is sent in each direction comes in order.
struct Pair {
  int socket = -1;
  bool is_aborted = false;

  Pair() = default;
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() { close(socket); }
};

struct Communicator {
  Group* group;
  int rank, count;
  std::shared_ptr<Pair> pair = std::make_shared<Pair>();
};
// A rank's operands of a collective.
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

// On a GPU, ranks whose calls differ give garbage or wait for ever.
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

// The address of an abstract socket, which has no file.
sockaddr_un address_of(const Id& id) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, id.bytes, strnlen(id.bytes, sizeof address.sun_path - 2));
  return address;
}

int connection(const Id& id, int rank) {
  const sockaddr_un address = address_of(id);
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const int made = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (rank == 1) {
    while (connect(made, where, sizeof address) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return made;
  }
  if (bind(made, where, sizeof address) != 0 || listen(made, 1) != 0) std::abort();
  const int accepted = accept(made, nullptr, nullptr);
  close(made);
  return accepted;
}

// Bytes that are transferred as the socket takes or has them, preceded by their number.
struct Transfer {
  std::shared_ptr<Pair> pair;
  char* data;
  std::uint64_t count;
  std::uint64_t announced;
  std::size_t num_done = 0;  // bytes transferred, of the number and the data

  // Returns whether the transfer has ended. `move` is send() or recv(). A transfer whose peer is gone never ends.
  template <typename Move>
  bool go_on(const Move& move) {
    while (!pair->is_aborted && num_done < sizeof announced + count) {
      const bool is_number = num_done < sizeof announced;
      char* const at = is_number ? reinterpret_cast<char*>(&announced) + num_done : data + num_done - sizeof announced;
      const std::size_t left = (is_number ? sizeof announced : sizeof announced + count) - num_done;
      const ssize_t moved = move(pair->socket, at, left, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (moved <= 0) return false;
      num_done += static_cast<std::size_t>(moved);
      if (num_done == sizeof announced && announced != count) std::abort();  // the sides differ
    }
    return true;
  }
};

// Runs the streams that send, because nobody else may wait for their end.
class Pump {
 public:
  Pump() : thread_([this] { run(); }) {}
  ~Pump() {
    is_over_ = true;
    thread_.join();
  }
  void add(Stream* stream) { sending_.insert(stream); }

 private:
  void run() {
    while (!is_over_) {
      std::unique_lock lock(fake::device_mutex());
      for (Stream* const stream : std::vector(fake::streams())) {
        if (sending_.contains(stream)) fake::run_until(stream, [] { return false; });
      }
      fake::pushed().wait_for(lock, std::chrono::milliseconds(1));
    }
  }

  std::set<Stream*> sending_;
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

Pump& pump() {
  fake::streams();  // these are made first, so that they outlive the pump
  fake::pushed();
  fake::device_mutex();
  static Pump pump;
  return pump;
}

template <typename Move>
int put(Communicator* communicator, void* data, std::size_t count, Stream* stream, const Move& move) {
  Pair& pair = *communicator->pair;
  if (pair.socket < 0) pair.socket = connection(communicator->group->id, communicator->rank);
  auto transfer = std::make_shared<Transfer>(Transfer{communicator->pair, static_cast<char*>(data), count, count});
  const Lock lock(fake::device_mutex());
  ++fake::num_under_way();
  const auto go_on = [transfer, move] {
    if (!transfer->go_on(move)) return false;
    --fake::num_under_way();
    return true;
  };
  return stream->push(go_on), 0;
}

}  // namespace

extern "C" {

Collective* fake_new_collective();
int fake_join(void* stream, Collective* collective, int rank, int count, void* own, Together together);
void fake_abort(Collective* collective);

// For tests: how many communicators there are, and how many were aborted.
std::int64_t fake_communicators() { return num_alive(); }
std::int64_t fake_aborted() { return num_aborted(); }

int ncclGetVersion(int* version) { return *version = 22700, 0; }
const char* ncclGetErrorString(int result) { return result == kRemoteError ? "a remote process exited" : "no success"; }
int ncclGetUniqueId(Id* id) {
  static std::atomic<int> number = 0;
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "fake-nccl-%d-%d-%u", getpid(), number++, std::random_device()());
  return 0;
}
int ncclCommInitRank(Communicator** communicator, int count, Id id, int rank) {
  static std::map<std::string, Group> groups;
  if (number_from("FAKE_UNCONNECTED_RANK") == rank) return kSystemError;
  const std::lock_guard lock(mutex());
  Group& group = groups[std::string(id.bytes, sizeof(id.bytes))];
  if (group.collective == nullptr) group = {id, fake_new_collective()};
  ++num_alive();
  return *communicator = new Communicator{&group, rank, count, std::make_shared<Pair>()}, 0;
}
int ncclCommDestroy(Communicator* communicator) {
  const std::lock_guard lock(mutex());
  --num_alive();
  return delete communicator, 0;
}
int ncclCommAbort(Communicator* communicator) {
  const std::lock_guard lock(mutex());
  fake_abort(communicator->group->collective);
  {
    const Lock stops(fake::device_mutex());
    communicator->pair->is_aborted = true;
  }
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
  return fake_join(stream, ranks->group->collective, ranks->rank, ranks->count, own, all_reduce);
}
int ncclAllGather(const char* x, char* y, std::size_t count, int type, Communicator* ranks, void* stream) {
  auto* own = new Operands{x, y, count, type, 0};
  return fake_join(stream, ranks->group->collective, ranks->rank, ranks->count, own, all_gather);
}
int ncclBroadcast(const char* x, char* y, std::size_t count, int type, int root, Communicator* ranks, void* stream) {
  auto* own = new Operands{x, y, count, type, root};
  return fake_join(stream, ranks->group->collective, ranks->rank, ranks->count, own, broadcast);
}
int ncclSend(void* x, std::size_t count, int, int, Communicator* communicator, Stream* stream) {
  {
    const Lock lock(fake::device_mutex());
    pump().add(stream);
  }
  return put(communicator, x, count, stream, send);
}
int ncclRecv(void* x, std::size_t count, int, int, Communicator* communicator, Stream* stream) {
  return put(communicator, x, count, stream, recv);
}

}  // extern "C"
