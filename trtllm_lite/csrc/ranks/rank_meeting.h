// Where the ranks of one engine meet within a step, each on a thread of its own: a collective reads what other ranks
// have computed, so that every rank waits for all. Who supervises the step learns which rank failed or did not come.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace tl {

// What a rank brings to a collective: where its operands lie.
struct RankOperands {
  const std::byte* x = nullptr;
  std::byte* y = nullptr;
};

// A collective of a step: its number among them, and what it computes.
struct CollectiveSite {
  int number = 0;
  std::string name;
};

class RankMeeting {
 public:
  // A rank that comes later to a collective than another by more than `timeout` has failed; that is noticed after an
  // eighth of it more.
  RankMeeting(int num_ranks, std::chrono::nanoseconds timeout);
  RankMeeting(const RankMeeting&) = delete;
  RankMeeting& operator=(const RankMeeting&) = delete;
  virtual ~RankMeeting() = default;

  int num_ranks() const { return static_cast<int>(operands_.size()); }

  // A step: begin(), on each rank's thread any number of meet(), then end(). Meanwhile the caller of begin() is in
  // supervise(), which returns when all ranks have ended; it throws what the first of them failed with, or DeviceError
  // with the names of ranks that did not come. Those are given up: no further step can begin.
  void begin();
  void end(int rank, std::exception_ptr error);
  void supervise();

  // A collective: meet() waits until every rank is here with its operands, which all may read and write until each has
  // called part(), which waits for the others to do so. Both throw DeviceError if the step has failed meanwhile. (Tests
  // have ranks that do not come.)
  virtual std::span<const RankOperands> meet(int rank, RankOperands operands, const CollectiveSite& site);
  void part(int rank, const CollectiveSite& site);

  // Whether a rank was given up, whose thread may never end.
  bool gave_up() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;
  bool is_done() const;
  bool is_overdue() const;
  void arrive(int rank, const CollectiveSite& site);
  void wait_for_all(Lock& lock, int rank, const CollectiveSite& site);
  void fail(std::exception_ptr error);
  std::string missing() const;

  const std::chrono::nanoseconds timeout_;
  mutable std::mutex mutex_;
  std::condition_variable met_, ended_or_failed_;
  std::vector<RankOperands> operands_;
  std::vector<char> here_;   // at the meeting that is going on
  std::vector<char> ended_;  // the step
  CollectiveSite site_;      // of that meeting
  Clock::time_point since_;  // when the first rank came to it
  std::uint64_t num_meetings_ = 0;
  std::int64_t num_steps_ = 0;
  std::exception_ptr failure_;
  bool gave_up_ = false;
};

}  // namespace tl
