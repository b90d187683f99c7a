#include "batching/inbox.h"

#include <string>
#include <utility>

#include "errors.h"

namespace tl {

RequestId Inbox::submit(RequestSpec spec) {
  auto request = std::make_unique<Request>(0, std::move(spec), Clock::now());
  const std::lock_guard lock(mutex_);
  if (draining_) throw LimitError("expected a running event loop, found one that is shut down: create a new runner");
  if (std::ssize(outstanding_) >= max_requests_) {
    throw LimitError("expected fewer than max_requests (" + std::to_string(max_requests_) +
                     ") outstanding requests, found " + std::to_string(outstanding_.size()) +
                     ": fetch the results of earlier requests, retry later, or raise max_requests");
  }
  request->id = ++last_id_;
  outstanding_.emplace(request->id, false);
  mail_.submissions.push_back(std::move(request));
  has_mail_.store(true, std::memory_order_release);
  arrived_.notify_one();
  return last_id_;
}

bool Inbox::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = outstanding_.find(id);
  if (found == outstanding_.end()) return false;
  if (std::exchange(found->second, true)) return true;
  mail_.cancellations.push_back(id);
  has_mail_.store(true, std::memory_order_release);
  arrived_.notify_one();
  return true;
}

void Inbox::shut_down(Shutdown how) {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  if (how == Shutdown::kCancel) cancelling_ = true;
  has_mail_.store(true, std::memory_order_release);
  arrived_.notify_one();
}

void Inbox::forget(const std::vector<RequestEnd>& ends) {
  if (ends.empty()) return;
  const std::lock_guard lock(mutex_);
  for (const RequestEnd& end : ends) outstanding_.erase(end.id);
}

void Inbox::take(Mail& mail) {
  mail.submissions.clear();
  mail.cancellations.clear();
  const std::lock_guard lock(mutex_);
  std::swap(mail, mail_);
  has_mail_.store(false, std::memory_order_release);
}

void Inbox::wait_for_mail() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return has_mail_.load(); });
}

}  // namespace tl
