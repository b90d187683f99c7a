#include "bindings/loop.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "errors.h"

namespace nb = nanobind;

namespace tl {
namespace {

// The longest timeout: some years, which the clock can express.
constexpr double kMaxSeconds = 1e8;

nb::typed<nb::dict, nb::str, nb::any> stats_dict(const PyLoop& loop) {
  const LoopStats stats = loop.stats();
  const SchedulerStats& scheduler = stats.scheduler;
  nb::dict out;
  out["num_running"] = scheduler.num_running;
  out["num_waiting"] = scheduler.num_waiting;
  out["num_blocks"] = scheduler.num_blocks;
  out["num_used_blocks"] = scheduler.num_used_blocks;
  out["num_lent_slabs"] = scheduler.num_lent_slabs;
  out["num_spare_slabs"] = scheduler.num_spare_slabs;
  out["num_free_host_blocks"] = scheduler.num_free_host_blocks;
  out["lookup_tokens"] = scheduler.kv.lookup_tokens;
  out["hit_tokens"] = scheduler.kv.hit_tokens;
  out["reached_tokens"] = nb::tuple(nb::cast(scheduler.kv.reached_tokens));
  out["host_tokens"] = nb::tuple(nb::cast(scheduler.kv.host_tokens));
  out["evicted_blocks"] = scheduler.kv.evicted_blocks;
  out["num_recompute_preemptions"] = scheduler.num_recompute_preemptions;
  out["num_swap_preemptions"] = scheduler.num_swap_preemptions;
  out["num_recomputed_tokens"] = scheduler.num_recomputed_tokens;
  out["num_scheduled_tokens"] = scheduler.num_scheduled_tokens;
  out["num_late_rows"] = scheduler.num_late_rows;
  out["num_drafts"] = scheduler.drafts.num_rows;
  out["num_drafted"] =
      std::vector<std::int64_t>(scheduler.drafts.num_drafted.begin(), scheduler.drafts.num_drafted.end());
  out["num_accepted"] =
      std::vector<std::int64_t>(scheduler.drafts.num_accepted.begin(), scheduler.drafts.num_accepted.end());
  out["num_steps"] = stats.num_steps;
  out["num_failed_steps"] = stats.num_failed_steps;
  out["num_generated_tokens"] = stats.num_generated_tokens;
  out["step_seconds"] = stats.step_seconds;
  out["host_seconds"] = stats.host_seconds;
  nb::dict decode_host_times;
  stats.decode_host_times.for_each(
      [&](double seconds, std::uint32_t count) { decode_host_times[nb::float_(seconds)] = count; });
  out["decode_host_times"] = decode_host_times;
  return out;
}

using StepTimes = std::tuple<double, double, double, double, std::int64_t, std::int64_t, std::int64_t>;

// Seconds of the clock that Python calls time.perf_counter, which on Linux is the steady clock.
double instant(Clock::time_point time) { return seconds(time.time_since_epoch()); }

std::pair<std::vector<StepTimes>, std::int64_t> take_steps(PyLoop& loop) {
  const RecordedSteps recorded = loop.step_log().take();
  std::vector<StepTimes> steps;
  for (const StepRecord& step : recorded.steps) {
    steps.emplace_back(instant(step.begin), instant(step.end), step.host_seconds, step.compute_seconds, step.num_rows,
                       step.num_tokens, step.num_decode_tokens);
  }
  return {std::move(steps), recorded.num_left_out};
}

}  // namespace

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::isnan(seconds) ? 0 : std::clamp(seconds, 0.0, kMaxSeconds)));
}

void check_limit(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw LimitError(std::string(name) + ": expected " + std::to_string(low) + " to " + std::to_string(high) +
                   ", found " + std::to_string(value) + "; stay within what the engine was built for");
}

PyLoop::~PyLoop() {
  const nb::gil_scoped_release release;
  loop_.reset();
}

void PyLoop::hold() {
  home().check();
  loop_->hold();
}

void PyLoop::release() {
  if (home().is_this()) loop_->release();
}

LoopStats PyLoop::stats() const {
  home().check();
  return loop_->stats();
}

PollStatus PyLoop::poll_into(EventBatch& batch, double timeout) {
  home().check();
  const nb::gil_scoped_release release;
  return loop_->poll(batch, duration_of(timeout));
}

void PyLoop::shut_down(bool drain) {
  if (home().is_this()) loop_->shut_down(drain ? Shutdown::kDrain : Shutdown::kCancel);
}

void bind_loop(nb::module_& module) {
  module.attr("MAX_PRIORITY") = kMaxPriority;
  static_assert(kMinPriority == -kMaxPriority);
  nb::class_<PyLoop>(module, "Loop", R"(
      Runs requests over an executor, on its own threads.

      Any thread may submit and cancel requests; one thread polls.)")
      .def("cancel", &PyLoop::cancel, nb::arg("request_id"),
           "End a request within a step; False if its end has been polled already.")
      .def("hold", &PyLoop::hold, R"(
          Keep requests that are submitted before ``release`` waiting for one another: they start in one step.

          No more than one step can start are kept waiting. Each call is followed by one of ``release``.)")
      .def("release", &PyLoop::release, "Let requests start that wait since ``hold``.")
      .def_prop_ro("device_failed", &PyLoop::device_failed, "Whether a step failed because the device did.")
      .def("stats", &stats_dict, R"(
          Counts of requests, blocks, tokens, steps and preemptions, and recent means of seconds per step.)")
      .def(
          "record_steps", [](PyLoop& loop, std::size_t most) { loop.step_log().start(most); }, nb::arg("most"),
          "Record the times and tokens of the next ``most`` steps, and forget those of earlier steps.")
      .def("take_steps", &take_steps, R"(
          End the recording; returns the recorded steps, and the number of later steps for which there was no room.

          A step has: the instants of its begin and end in seconds of ``time.perf_counter``, seconds of the host,
          seconds on the device (0 if unknown), rows, tokens, tokens of rows that decode.)")
      .def("shut_down", &PyLoop::shut_down, nb::kw_only(), nb::arg("drain") = true, R"(
          Accept no more requests; let accepted requests run to their end, or cancel them. Returns at once.)");
}

}  // namespace tl
