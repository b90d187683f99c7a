// Streams of the fake driver, which run as late as they may, and what several of them do together.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fake {

// The mutex of all shared state of the fake device; whoever runs work of a stream holds it, too.
inline std::recursive_mutex& device_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}
using Lock = std::lock_guard<std::recursive_mutex>;

// Notified when something is put on a stream, or has run there.
inline std::condition_variable_any& pushed() {
  static std::condition_variable_any pushed;
  return pushed;
}

inline std::int64_t& counted(const std::string& what) {
  static std::map<std::string, std::int64_t> counts;
  return counts[what];
}
inline void count(const std::string& what, std::int64_t more = 1) {
  const Lock lock(device_mutex());
  counted(what) += more;
}

inline int number_from(const char* variable, int otherwise) {
  const char* set = std::getenv(variable);
  return set == nullptr ? otherwise : std::atoi(set);
}

// Work on a stream. It is called again later if it returns false, because what it waits for has not happened.
class Work {
 public:
  template <typename Fn>
    requires(!std::is_same_v<std::remove_cvref_t<Fn>, Work>)
  Work(Fn&& fn) {
    if constexpr (std::is_void_v<std::invoke_result_t<Fn&>>) {
      run_ = [fn = std::forward<Fn>(fn)] { return fn(), true; };
    } else {
      run_ = std::forward<Fn>(fn);
    }
  }
  bool operator()() const { return run_(); }

 private:
  std::function<bool()> run_;
};

struct Context {
  int device = 0;
};
inline Context*& current() {
  thread_local Context* context = nullptr;
  return context;
}

struct Stream {
  std::deque<Work> queue;
  std::vector<Work>* capture = nullptr;
  Context* context = current();
  int priority = 0;  // the less, the sooner
  bool is_running = false;
  int num_pending = 0;  // kernels launched one by one that have not run

  void push(Work work) {
    const Lock lock(device_mutex());
    if (capture) {
      capture->push_back(std::move(work));
    } else {
      queue.push_back(std::move(work));
      pushed().notify_all();
    }
  }
};

inline std::vector<Stream*>& streams() {
  static std::vector<Stream*> all;
  return all;
}

inline bool is_stalled(const Stream* stream) {
  return stream->context && stream->context->device == number_from("FAKE_STALLED_GPU", -1);
}

// Runs a stream until `done`, or until its next work waits for something that has not happened.
inline void run_until(Stream* stream, const std::function<bool()>& done) {
  const Lock lock(device_mutex());
  if (stream->is_running || is_stalled(stream)) return;
  stream->is_running = true;
  while (!done() && !stream->queue.empty()) {
    const Work work = stream->queue.front();
    if (!work()) break;
    stream->queue.pop_front();
    pushed().notify_all();
  }
  stream->is_running = false;
}

// The number of transfers with other processes that are under way; they progress without calls in this process.
inline int& num_under_way() {
  static int number = 0;
  return number;
}

// Runs a stream until `done`, waiting for transfers that are under way. Returns whether it is `done`.
inline bool wait_until(Stream* stream, const std::function<bool()>& done) {
  std::unique_lock lock(device_mutex());
  while (true) {
    run_until(stream, done);
    if (done()) return true;
    if (num_under_way() == 0 || is_stalled(stream)) return false;
    pushed().wait_for(lock, std::chrono::milliseconds(1));
  }
}

// A collective of ranks, which they run repeatedly: the last rank to arrive computes it for all.
class Collective {
 public:
  using Together = void (*)(void* const* each, int count);

  // Whether the collective has been computed for this rank: all ranks have come, each with its operand of `together`.
  bool come(int rank, int count, void* own, Together together) {
    if (aborted) return true;
    std::int64_t& left = left_[rank];
    Round& round = rounds_[left];
    round.each.resize(static_cast<std::size_t>(count));
    if (round.came.insert({rank, true}).second) {
      round.each[static_cast<std::size_t>(rank)] = own;
      if (static_cast<int>(round.came.size()) == count) together(round.each.data(), count);
    }
    const auto all_came = [&] { return aborted || static_cast<int>(round.came.size()) == count; };
    for (Stream* stream : std::vector(streams())) run_until(stream, all_came);
    if (all_came()) ++left;
    return all_came();
  }

  bool aborted = false;

 private:
  struct Round {
    std::vector<void*> each;
    std::map<int, bool> came;
  };
  std::map<int, std::int64_t> left_;  // number of rounds that each rank has finished
  std::map<std::int64_t, Round> rounds_;
};

}  // namespace fake
