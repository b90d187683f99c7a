// Synchronizes the ranks of one engine within a step, each on its own thread: a collective reads what other ranks have
// computed, so every rank waits for all. The supervisor of the step learns which rank failed or did not come.
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

// A rank's operands of a collective.
struct RankOperands {
  const std::byte* x = nullptr;
  std::byte* y = nullptr;
};

// A collective of a step: its number in the step, and what it computes.
struct CollectiveSite {
  int number = 0;
  std::string name;
};

class RankRendezvous {
 public:
  // A rank has failed if it comes to a collective later than another by more than `timeout`; this is noticed at most
  // an eighth of `timeout` later.
  RankRendezvous(int num_ranks, std::chrono::nanoseconds timeout);
  RankRendezvous(const RankRendezvous&) = delete;
  RankRendezvous& operator=(const RankRendezvous&) = delete;
  virtual ~RankRendezvous() = default;

  int num_ranks() const { return static_cast<int>(operands_.size()); }

  // A step: begin(), then on each rank's thread any number of meet() and finally end(). Meanwhile the caller of begin()
  // waits in supervise(), which returns when all ranks have ended. It throws the first error of a rank, or DeviceError
  // that names the ranks that did not come. These are given up: no further step can begin.
  void begin();
  void end(int rank, std::exception_ptr error);
  void supervise();

  // A collective: meet() waits until every rank has come with its operands. All ranks may read and write all operands
  // until part() returns, which waits until every rank has called it. Both throw DeviceError if the step has failed
  // meanwhile. (Virtual for tests, whose ranks may not come.)
  virtual std::span<const RankOperands> meet(int rank, RankOperands operands, const CollectiveSite& site);
  void part(int rank, const CollectiveSite& site);

  // Whether a rank was given up. Its thread may never end.
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
  std::vector<char> here_;   // ranks at the current rendezvous
  std::vector<char> ended_;  // ranks that have ended the step
  CollectiveSite site_;      // site of the current rendezvous
  Clock::time_point since_;  // when the first rank came to it
  std::uint64_t num_rendezvous_ = 0;
  std::int64_t num_steps_ = 0;
  std::exception_ptr failure_;
  bool gave_up_ = false;
};

}  // namespace tl
