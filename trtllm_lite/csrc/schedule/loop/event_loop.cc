#include "schedule/loop/event_loop.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "errors.h"

namespace tl {

// Runs `call`. Any exception is returned as a StepError.
template <typename Fn>
std::optional<StepError> EventLoop::attempt(Fn&& call) {
  try {
    call();
    return std::nullopt;
  } catch (const StepError& error) {
    return error;
  } catch (const DeviceError& error) {
    device_failed_ = true;
    return StepError(error.what());
  } catch (const std::exception& error) {
    return StepError(error.what());
  } catch (...) {
    return StepError("the executor threw an exception of unknown type");
  }
}

EventLoop::EventLoop(const EventLoopConfig& config, std::unique_ptr<StepExecutor> executor)
    : check_(config.make_check()),
      clock_(config.clock),
      executor_(std::move(executor)),
      inbox_(config.max_requests, config.max_requests_of_step(), [this] { executor_->wake(); }),
      planner_(config.make_planner(*executor_)),
      batches_(static_cast<std::size_t>(executor_->num_stages()) + 1),
      now_(clock_()),
      last_results_(now_),
      thread_([this] { run(); }) {}

EventLoop::~EventLoop() {
  shut_down(Shutdown::kCancel);
  thread_.join();
}

RequestId EventLoop::submit(RequestSpec spec) {
  check_(spec);
  return inbox_.submit(std::move(spec), clock_());
}

RequestId EventLoop::submit_all(std::vector<RequestSpec> specs) {
  for (const RequestSpec& spec : specs) check_(spec);
  return inbox_.submit_all(std::move(specs), clock_());
}

PollStatus EventLoop::poll(EventBatch& out, Clock::duration timeout) {
  const PollStatus status = events_.poll(out, timeout);
  inbox_.forget(out.ends);
  return status;
}

std::vector<int> EventLoop::lend_slabs(int num_slabs) {
  std::future<std::vector<int>> slabs = inbox_.order_slabs(num_slabs);
  try {
    return slabs.get();
  } catch (const std::future_error&) {  // the loop has ended
    throw LimitError("this model was shut down and lends no more memory: load it again");
  }
}

LoopStats EventLoop::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void EventLoop::run() {
  bool more = true;
  publish();
  while (more) {
    try {
      more = iterate();
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
    publish();
  }
  lend_orders_.clear();
  events_.close();
}

// One iteration launches the device's next step, then takes the results of a finished one. Returns false when the loop
// is shut down and all requests have ended.
bool EventLoop::iterate() {
  now_ = clock_();
  if (inbox_.has_mail()) take_mail();
  if (inbox_.cancelling()) planner_->end_all(FinishReason::kCancelled, "", now_, unpublished_);
  planner_->expire(now_, unpublished_);

  const bool launched = launch_next();
  hand_out_slabs();
  unpublished_.short_of_blocks = planner_->take_short_of_blocks() || unpublished_.short_of_blocks;
  if (in_flight_ == batches_.size() || (in_flight_ > 0 && !launched)) {
    collect_oldest();
  } else if (in_flight_ == 0 && unpublished_.empty()) {
    if (!planner_->empty()) throw std::logic_error("no waiting request can be scheduled");
    if (inbox_.draining() && !inbox_.has_mail()) return false;
    inbox_.wait_for_mail();
    count_from(clock_());  // idle time belongs to no step
  }
  return true;
}

void EventLoop::take_mail() {
  inbox_.take(mail_);
  for (const int slab : mail_.returned_slabs) planner_->give_back(slab);
  for (LendOrder& order : mail_.lend_orders) {
    try {
      planner_->lend(order.num_slabs);
      lend_orders_.push_back(std::move(order));
    } catch (...) {  // it is the caller's
      order.slabs.set_exception(std::current_exception());
    }
  }
  for (auto& request : mail_.submissions) planner_->add(std::move(request));
  for (const RequestId id : mail_.cancellations) planner_->end(id, FinishReason::kCancelled, "", now_, unpublished_);
}

// Gives callers the slabs that the scheduler has lent, in the order of their calls.
void EventLoop::hand_out_slabs() {
  for (const int slab : planner_->take_lent()) lent_.push_back(slab);
  while (!lend_orders_.empty() && std::ssize(lent_) >= lend_orders_.front().num_slabs) {
    LendOrder order = std::move(lend_orders_.front());
    lend_orders_.pop_front();
    const auto end = lent_.begin() + order.num_slabs;
    order.slabs.set_value(std::vector(lent_.begin(), end));
    lent_.erase(lent_.begin(), end);
  }
}

// Launches no step if the oldest of num_stages() steps in flight is awaited: without the rows of that step, the new one
// would read all weights for the other rows alone.
bool EventLoop::launch_next() {
  if (in_flight_ == batches_.size() - 1 && batches_[oldest_].awaited) return false;
  StepBatch& batch = in_flight(in_flight_);
  if (!planner_->prepare(batch, now_, unpublished_)) return false;
  planner_->launched(batch);
  ++in_flight_;
  ++num_launches_;
  launched_only_decodes_ = launched_only_decodes_ && batch.only_decodes();
  const std::optional<StepError> error = attempt([&] { executor_->launch(batch); });
  if (!error) {
    ++owed_;
    if (owed_ == 1) take_back_late();
    return true;
  }
  while (owed_ > 0) {  // earlier steps are not affected: their results count, unless they fail too
    if (const std::optional<StepError> earlier = wait_for_oldest()) {
      fail_steps(*earlier);
      return true;
    }
    complete_oldest();
  }
  fail_steps(*error);
  return true;
}

void EventLoop::collect_oldest() {
  if (const std::optional<StepError> error = wait_for_oldest()) {
    fail_steps(*error);
    return;
  }
  complete_oldest();
}

std::optional<StepError> EventLoop::wait_for_oldest() {
  const std::size_t num_rows = batches_[oldest_].rows.size();
  const Clock::time_point before = clock_();
  --owed_;
  std::optional<StepError> error = attempt([&] {
    executor_->wait(result_);
    if (result_.rows.size() != num_rows) {
      throw StepError("the executor returned " + std::to_string(result_.rows.size()) + " rows for a step of " +
                      std::to_string(num_rows));
    }
  });
  now_ = clock_();
  waited_ += now_ - before;
  return error;
}

void EventLoop::complete_oldest() {
  const StepBatch& batch = batches_[oldest_];
  oldest_ = (oldest_ + 1) % batches_.size();
  --in_flight_;
  if (owed_ == 1) take_back_late();
  planner_->complete(batch, result_, now_, unpublished_);
  work_stats_.num_steps += !result_.paused;
  const double step = seconds(now_ - last_results_), host = step - seconds(waited_);
  work_stats_.step_seconds += step;
  work_stats_.host_seconds += host;
  if (num_launches_ == 1 && launched_only_decodes_) work_stats_.decode_host_times.add(host);
  step_log_.add({.begin = last_results_,
                 .end = now_,
                 .host_seconds = host,
                 .compute_seconds = result_.compute_seconds,
                 .num_rows = result_.paused ? 0 : std::ssize(batch.rows),
                 .num_tokens = result_.paused ? 0 : std::ssize(batch.token_ids),
                 .num_decode_tokens = batch.num_decode_tokens});
  count_from(now_);
}

// Takes back the late rows of the only step in flight.
void EventLoop::take_back_late() { planner_->sit_out(batches_[oldest_], executor_->late_rows(), now_, unpublished_); }

void EventLoop::count_from(Clock::time_point instant) {
  last_results_ = instant;
  waited_ = {};
  num_launches_ = 0;
  launched_only_decodes_ = true;
}

// The oldest step in flight has failed, and with it the later ones, which depend on it.
void EventLoop::fail_steps(const StepError& error) {
  drain();
  std::vector<const StepBatch*> failed;
  for (std::size_t i = 0; i < in_flight_; ++i) failed.push_back(&in_flight(i));
  work_stats_.num_failed_steps += std::ssize(failed);
  in_flight_ = 0;
  planner_->abandon(failed, error, now_, unpublished_);
}

void EventLoop::drain() {
  for (; owed_ > 0; --owed_) attempt([&] { executor_->wait(result_); });
}

// Handles an error of the loop itself. It may concern any request, so all requests end; the loop goes on.
void EventLoop::fail_all(const char* what) {
  drain();
  in_flight_ = 0;
  planner_->reset(std::string("internal error of the event loop: ") + what, now_, unpublished_);
}

void EventLoop::publish() {
  work_stats_.count(unpublished_);
  {
    const std::lock_guard lock(stats_mutex_);
    stats_ = work_stats_;
    stats_.scheduler = planner_->stats();
  }
  events_.publish(unpublished_);
}

}  // namespace tl
