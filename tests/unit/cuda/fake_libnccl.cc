// libnccl.so.2 over the fake driver: what two ranks of different processes send each other goes through a socket.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "fake_streams.h"

namespace {

using fake::Lock, fake::Stream;

struct Id {
  char bytes[128];
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
  std::shared_ptr<Pair> pair = std::make_shared<Pair>();
};

// A name that is no file's.
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

// Bytes that go over as the socket takes or has them, behind their number.
struct Transfer {
  std::shared_ptr<Pair> pair;
  char* data;
  std::uint64_t count;
  std::uint64_t announced;
  std::size_t num_done = 0;  // of the number and the bytes

  // Whether all is over. `move` is send() or recv(). One whose other side is gone never ends, as on a GPU.
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

// Runs the streams that send, of which nobody may wait for the end.
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
  fake::streams();  // outlive it
  fake::pushed();
  fake::device_mutex();
  static Pump pump;
  return pump;
}

template <typename Move>
int put(Communicator* communicator, void* data, std::size_t count, Stream* stream, const Move& move) {
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

const char* ncclGetErrorString(int) { return "the fake NCCL refuses"; }
int ncclGetVersion(int* version) { return *version = 22700, 0; }
int ncclGetUniqueId(Id* id) {
  static std::atomic<int> count = 0;
  *id = {};
  std::snprintf(id->bytes, sizeof id->bytes, "fake-nccl-%d-%d-%u", getpid(), count++, std::random_device()());
  return 0;
}
int ncclCommInitRank(Communicator** made, int, Id id, int rank) {
  *made = new Communicator;
  (*made)->pair->socket = connection(id, rank);
  return 0;
}
int ncclCommAbort(Communicator* communicator) {
  const Lock lock(fake::device_mutex());
  communicator->pair->is_aborted = true;
  delete communicator;
  return 0;
}
int ncclCommDestroy(Communicator* communicator) { return ncclCommAbort(communicator); }
int ncclCommGetAsyncError(Communicator*, int* error) { return *error = 0, 0; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
int ncclSend(void* x, std::size_t count, int, int, Communicator* communicator, Stream* stream) {
  const Lock lock(fake::device_mutex());
  pump().add(stream);
  return put(communicator, x, count, stream, send);
}
int ncclRecv(void* x, std::size_t count, int, int, Communicator* communicator, Stream* stream) {
  return put(communicator, x, count, stream, recv);
}
// Of ranks of one process alone; none has asked for them yet.
int ncclAllReduce(const void*, void*, std::size_t, int, int, Communicator*, Stream*) { std::abort(); }
int ncclAllGather(const void*, void*, std::size_t, int, Communicator*, Stream*) { std::abort(); }
int ncclBroadcast(const void*, void*, std::size_t, int, int, Communicator*, Stream*) { std::abort(); }

}  // extern "C"
