#include "cuda/measure/time_candidates.h"

#include <algorithm>
#include <numeric>

#include "cuda/device/device.h"

namespace tl::cuda {
namespace {

using Candidates = std::vector<std::function<void()>>;

// A candidate that is slower than the fastest by more than this factor when all take turns is not timed alone: the
// clock cannot rise enough to make up for that.
constexpr double kNear = 1.12;
constexpr std::size_t kMaxFinalists = 5;
constexpr int kSustainedRounds = 2;
// The two parts of a burst: runs that settle the clock, and runs that are timed.
constexpr double kSettleMicroseconds = 6e4, kTimedMicroseconds = 7e4;

void record(const OwnedEvent& event, Stream stream) {
  driver().check(driver().event_record(event.get(), stream), "timing candidates");
}

double elapsed(const OwnedEvent& from, const OwnedEvent& to) {
  float milliseconds = 0;
  driver().check(driver().event_elapsed(&milliseconds, from.get(), to.get()), "timing candidates");
  return 1e3 * milliseconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::vector<double> time_in_turns(const Candidates& candidates, int repeats, Stream stream) {
  std::vector<std::vector<double>> times(candidates.size());
  std::vector<OwnedEvent> events(candidates.size() + 1);
  std::ranges::generate(events, make_event);
  for (int repeat = 0; repeat <= repeats; ++repeat) {
    candidates.front()();  // keeps the device busy while the next are enqueued
    record(events[0], stream);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      candidates[i]();
      record(events[i + 1], stream);
    }
    driver().check(driver().stream_synchronize(stream), "timing candidates");
    for (std::size_t i = 0; i < candidates.size() && repeat > 0; ++i) {  // the first time loads the kernels
      times[i].push_back(elapsed(events[i], events[i + 1]));
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_candidate : times) medians.push_back(median(std::move(of_candidate)));
  return medians;
}

// The indices of the fastest few candidates and of the first one.
std::vector<std::size_t> finalists_of(const std::vector<double>& times) {
  std::vector<std::size_t> order(times.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return times[i]; });
  const double most = kNear * times[order.front()];
  std::vector<std::size_t> finalists{0};
  for (const std::size_t i : order) {
    if (i != 0 && finalists.size() <= kMaxFinalists && times[i] <= most) finalists.push_back(i);
  }
  return finalists;
}

// Enqueues a burst of runs. The events enclose its second part; returns the number of runs in that part.
int enqueue_burst(const std::function<void()>& candidate, double estimate, const OwnedEvent& begin,
                  const OwnedEvent& end, Stream stream) {
  const auto runs = [estimate](double microseconds) { return std::max(1, static_cast<int>(microseconds / estimate)); };
  for (int i = runs(kSettleMicroseconds); i > 0; --i) candidate();
  record(begin, stream);
  const int timed = runs(kTimedMicroseconds);
  for (int i = timed; i > 0; --i) candidate();
  record(end, stream);
  return timed;
}

}  // namespace

std::vector<std::optional<double>> time_candidates(const Candidates& candidates, const TimingEffort& effort,
                                                   Stream stream) {
  const std::vector<double> in_turns = time_in_turns(candidates, effort.repeats, stream);
  if (!effort.sustained) return {in_turns.begin(), in_turns.end()};
  std::vector<std::optional<double>> result(candidates.size());
  const OwnedEvent begin = make_event(), end = make_event();
  for (int round = 0; round < kSustainedRounds; ++round) {
    for (const std::size_t i : finalists_of(in_turns)) {
      const int runs = enqueue_burst(candidates[i], in_turns[i], begin, end, stream);
      driver().check(driver().event_synchronize(end.get()), "timing candidates");
      result[i] = result[i].value_or(0) + elapsed(begin, end) / (runs * kSustainedRounds);
    }
  }
  return result;
}

}  // namespace tl::cuda
