#include "schedule/loop/inbox.h"

#include <string>
#include <utility>

#include "errors.h"

namespace tl {

RequestId Inbox::submit(RequestSpec spec, Clock::time_point now) {
  auto request = std::make_unique<Request>(0, std::move(spec), now);
  const std::lock_guard lock(mutex_);
  check_open();
  check_room(1, request->spec.extra);
  push(std::move(request));
  announce_mail();
  return last_id_;
}

RequestId Inbox::submit_all(std::vector<RequestSpec> specs, Clock::time_point now) {
  std::vector<std::unique_ptr<Request>> requests;
  for (RequestSpec& spec : specs) requests.push_back(std::make_unique<Request>(0, std::move(spec), now));
  const std::lock_guard lock(mutex_);
  check_open();
  check_room(std::ssize(requests), false);
  const RequestId first = last_id_ + 1;
  for (std::unique_ptr<Request>& request : requests) push(std::move(request));
  announce_mail();
  return first;
}

void Inbox::check_open() const {
  if (draining_) throw LimitError("this model was shut down and takes no more requests: load it again");
}

void Inbox::push(std::unique_ptr<Request> request) {
  const bool extra = request->spec.extra;
  request->id = ++last_id_;
  outstanding_.emplace(request->id, Outstanding{.extra = extra});
  num_extra_ += extra;
  mail_.submissions.push_back(std::move(request));
}

void Inbox::hold() {
  const std::lock_guard lock(mutex_);
  ++num_holds_;
}

void Inbox::release() {
  const std::lock_guard lock(mutex_);
  --num_holds_;
  announce_mail();
}

bool Inbox::holds() const { return num_holds_ > 0 && !draining_ && std::ssize(mail_.submissions) < max_held_; }

void Inbox::announce_mail() {
  has_mail_.store(true, std::memory_order_release);
  arrived_.notify_one();
  on_mail_();
}

std::future<std::vector<int>> Inbox::order_slabs(int num_slabs) {
  const std::lock_guard lock(mutex_);
  if (draining_) throw LimitError("this model was shut down and lends no more memory: load it again");
  std::future<std::vector<int>> future = mail_.lend_orders.emplace_back(LendOrder{num_slabs, {}}).slabs.get_future();
  announce_mail();
  return future;
}

void Inbox::return_slabs(const std::vector<int>& slabs) {
  const std::lock_guard lock(mutex_);
  mail_.returned_slabs.insert(mail_.returned_slabs.end(), slabs.begin(), slabs.end());
  announce_mail();
}

void Inbox::check_room(std::int64_t count, bool extra) const {
  if (std::ssize(outstanding_) + count > max_requests_) {
    throw OverloadedError("expected fewer than " + std::to_string(max_requests_ - count + 1) +
                          " sequences that wait or run, found " + std::to_string(outstanding_.size()) +
                          ": submit again when some have ended");
  }
  if (extra && num_extra_ >= max_requests_ / 2) {
    throw OverloadedError("expected fewer than " + std::to_string(max_requests_ / 2) +
                          " sequences that wait or run beyond the first of each prompt, found " +
                          std::to_string(num_extra_) +
                          ": submit again when some have ended, or ask for fewer sequences of a prompt (n, best_of)");
  }
}

bool Inbox::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = outstanding_.find(id);
  if (found == outstanding_.end()) return false;
  if (std::exchange(found->second.cancelled, true)) return true;
  mail_.cancellations.push_back(id);
  announce_mail();
  return true;
}

void Inbox::shut_down(Shutdown how) {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  if (how == Shutdown::kCancel) cancelling_ = true;
  announce_mail();
}

void Inbox::forget(const std::vector<RequestEnd>& ends) {
  if (ends.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const RequestEnd& end : ends) {
    const auto found = outstanding_.find(end.id);
    num_extra_ -= found->second.extra;
    outstanding_.erase(found);
  }
}

void Inbox::take(Mail& mail) {
  mail.submissions.clear();
  mail.cancellations.clear();
  mail.lend_orders.clear();
  mail.returned_slabs.clear();
  const std::lock_guard lock(mutex_);
  const bool held = holds();
  std::swap(mail, mail_);
  if (held) {  // a cancellation may be for one of the requests, and comes after it
    mail_.submissions.swap(mail.submissions);
    mail_.cancellations.swap(mail.cancellations);
  }
  has_mail_.store(false, std::memory_order_release);
}

void Inbox::wait_for_mail() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return has_mail_.load(); });
}

}  // namespace tl
