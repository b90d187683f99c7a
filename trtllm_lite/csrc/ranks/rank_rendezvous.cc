#include "ranks/rank_rendezvous.h"

#include <algorithm>
#include <utility>

#include "errors.h"
#include "ranks/failed_rank.h"

namespace tl {
namespace {

constexpr char kNo = 0, kYes = 1;

// When a step fails, ranks that wait in a rendezvous leave it at once; the others have this long to notice.
constexpr std::chrono::seconds kGrace{1};

}  // namespace

RankRendezvous::RankRendezvous(int num_ranks, std::chrono::nanoseconds timeout)
    : timeout_(timeout),
      operands_(static_cast<std::size_t>(num_ranks)),
      here_(static_cast<std::size_t>(num_ranks)),
      ended_(static_cast<std::size_t>(num_ranks), kYes) {}

void RankRendezvous::begin() {
  const Lock lock(mutex_);
  if (gave_up_) throw DeviceError(kRankGivenUp);
  ++num_steps_;
  failure_ = nullptr;
  std::ranges::fill(here_, kNo);
  std::ranges::fill(ended_, kNo);
}

// The end of a step is its last rendezvous; only the supervisor waits at it.
void RankRendezvous::end(int rank, std::exception_ptr error) {
  const Lock lock(mutex_);
  ended_[static_cast<std::size_t>(rank)] = kYes;
  if (error) {
    fail(std::move(error));
  } else {
    arrive(rank, {-1, "its end"});
  }
  ended_or_failed_.notify_all();
}

std::span<const RankOperands> RankRendezvous::meet(int rank, RankOperands operands, const CollectiveSite& site) {
  Lock lock(mutex_);
  operands_[static_cast<std::size_t>(rank)] = operands;
  wait_for_all(lock, rank, site);
  return operands_;
}

void RankRendezvous::part(int rank, const CollectiveSite& site) {
  Lock lock(mutex_);
  wait_for_all(lock, rank, site);
}

void RankRendezvous::wait_for_all(Lock& lock, int rank, const CollectiveSite& site) {
  const std::uint64_t before = num_rendezvous_;
  arrive(rank, site);
  met_.wait(lock, [&] { return num_rendezvous_ > before || failure_ != nullptr; });
  if (num_rendezvous_ == before) throw DeviceError("another rank failed");
}

void RankRendezvous::arrive(int rank, const CollectiveSite& site) {
  if (std::ranges::count(here_, kYes) == 0) {
    site_ = site;
    since_ = Clock::now();
  }
  here_[static_cast<std::size_t>(rank)] = kYes;
  if (std::ranges::count(here_, kNo) == 0) {
    std::ranges::fill(here_, kNo);
    ++num_rendezvous_;
    met_.notify_all();
  }
}

void RankRendezvous::fail(std::exception_ptr error) {
  if (!failure_) failure_ = std::move(error);
  met_.notify_all();
}

bool RankRendezvous::is_done() const { return std::ranges::count(ended_, kNo) == 0; }

bool RankRendezvous::is_overdue() const {
  return std::ranges::count(here_, kYes) > 0 && Clock::now() >= since_ + timeout_;
}

void RankRendezvous::supervise() {
  Lock lock(mutex_);
  while (!is_done() && !failure_) {
    ended_or_failed_.wait_for(lock, timeout_ / 8);
    if (!is_done() && !failure_ && is_overdue()) fail(std::make_exception_ptr(DeviceError(missing())));
  }
  if (!ended_or_failed_.wait_for(lock, kGrace, [&] { return is_done(); })) gave_up_ = true;
  if (failure_) std::rethrow_exception(failure_);
}

std::string RankRendezvous::missing() const {
  std::string ranks;
  int count = 0;
  for (std::size_t rank = 0; rank < here_.size(); ++rank) {
    if (here_[rank]) continue;
    ranks += (count++ > 0 ? ", " : "") + std::to_string(rank);
  }
  const std::string where =
      site_.number < 0 ? site_.name : "collective " + std::to_string(site_.number) + " (" + site_.name + ")";
  return did_not_come((count > 1 ? "ranks " : "rank ") + ranks, num_ranks(), where,
                      static_cast<std::uint64_t>(num_steps_), timeout_);
}

bool RankRendezvous::gave_up() const {
  const Lock lock(mutex_);
  return gave_up_;
}

}  // namespace tl
