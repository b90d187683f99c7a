// Records the times and tokens of single steps on request.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "schedule/request.h"

namespace tl {

// A step from the results of the one before it, or from the end of an idle time, to its own results. A step that is
// paused has several records, of which the last counts its rows and tokens.
struct StepRecord {
  Clock::time_point begin, end;
  double host_seconds;     // the part that the loop computed instead of waiting for the device
  double compute_seconds;  // measured on the device; 0 if unknown
  std::int64_t num_rows, num_tokens, num_decode_tokens;
};

struct RecordedSteps {
  std::vector<StepRecord> steps;
  std::int64_t num_left_out = 0;  // later steps, for which there was no room
};

// One thread calls add(); any other may call start() and take(). While nothing is recorded, add() costs one load.
class StepLog {
 public:
  // Records the next `most` steps, and forgets what was recorded before.
  void start(std::size_t most) {
    const std::lock_guard lock(mutex_);
    most_ = most;
    recorded_ = {};
    recording_ = true;
  }

  // Ends recording until the next start(), and returns what was recorded.
  RecordedSteps take() {
    const std::lock_guard lock(mutex_);
    recording_ = false;
    return std::exchange(recorded_, {});
  }

  void add(const StepRecord& step) {
    if (!recording_.load(std::memory_order_relaxed)) return;
    const std::lock_guard lock(mutex_);
    if (!recording_) return;
    if (recorded_.steps.size() < most_) {
      recorded_.steps.push_back(step);
    } else {
      ++recorded_.num_left_out;
    }
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> recording_{false};
  std::size_t most_ = 0;
  RecordedSteps recorded_;
};

}  // namespace tl
