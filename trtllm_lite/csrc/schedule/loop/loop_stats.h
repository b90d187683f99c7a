// Counts and times of what an event loop has done so far.
#pragma once

#include <array>
#include <cstdint>

#include "schedule/loop/duration_counts.h"
#include "schedule/loop/events.h"
#include "schedule/scheduler_stats.h"

namespace tl {

struct LoopStats {
  SchedulerStats scheduler;
  std::int64_t num_steps = 0;
  std::int64_t num_failed_steps = 0;
  std::int64_t num_generated_tokens = 0;
  std::array<std::int64_t, 6> num_ended{};  // by FinishReason
  double step_seconds = 0;                  // total of the times from one step's results to the next one's
  double host_seconds = 0;                  // the part of step_seconds in which the loop did not wait for the device
  DurationCounts decode_host_times;         // the loop's own time in each step that only decodes
  // Sums over ended requests that had a first token. Divide by num_timed for means.
  double queue_seconds = 0, first_token_seconds = 0, seconds_per_token = 0;
  std::int64_t num_timed = 0;

  void count(const EventBatch& events) {
    for (const TokenEvent& event : events.tokens) num_generated_tokens += event.tokens.size();
    for (const RequestEnd& end : events.ends) {
      ++num_ended[static_cast<std::size_t>(end.reason)];
      if (end.timings.num_generated_tokens == 0) continue;
      queue_seconds += end.timings.queue_seconds;
      first_token_seconds += end.timings.first_token_seconds;
      seconds_per_token += end.timings.seconds_per_token;
      ++num_timed;
    }
  }
};

}  // namespace tl
