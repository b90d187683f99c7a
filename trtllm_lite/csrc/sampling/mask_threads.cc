#include "sampling/mask_threads.h"

#include <algorithm>
#include <utility>

namespace tl {

MaskThreads::MaskThreads(int num_threads, std::size_t num_words) : num_words_(num_words) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_texts_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskThreads::start(std::span<const Order> orders) {
  std::string error;
  for (std::size_t i = 0; i < ordered_.size(); ++i) close(i, error);  // an error may have come before
  ordered_.clear();
  num_left_ = orders.size();
  std::vector<std::shared_ptr<GuidedText>> idle;
  for (const Order& given : orders) {
    ordered_.push_back(given.text);
    MaskOrder& order = given.text->order;
    const std::lock_guard lock(order.mutex);
    order.drafts.assign(given.drafts.begin(), given.drafts.end());
    order.masks = given.masks;
    order.is_open = true;
    if (!std::exchange(order.is_taken, true)) idle.push_back(given.text);
  }
  {
    const std::lock_guard lock(mutex_);
    texts_.insert(texts_.end(), idle.begin(), idle.end());
  }
  has_texts_.notify_all();
}

std::size_t MaskThreads::wait(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  all_made_.wait_for(lock, timeout, [this] { return num_left_ == 0; });
  return num_left_;
}

bool MaskThreads::close(std::size_t index, std::string& error) {
  MaskOrder& order = ordered_[index]->order;
  const std::lock_guard lock(order.mutex);
  error = order.error;
  return !std::exchange(order.is_open, false);
}

void MaskThreads::work() {
  while (const std::shared_ptr<GuidedText> text = next()) make(*text);
}

std::shared_ptr<GuidedText> MaskThreads::next() {
  std::unique_lock lock(mutex_);
  has_texts_.wait(lock, [this] { return stopping_ || !texts_.empty(); });
  if (stopping_) return nullptr;
  std::shared_ptr<GuidedText> text = std::move(texts_.front());
  texts_.pop_front();
  return text;
}

// Makes the masks that are ordered, and those that are ordered meanwhile with other drafts.
void MaskThreads::make(GuidedText& text) {
  MaskOrder& order = text.order;
  std::unique_lock lock(order.mutex);
  while (!order.has_made || (order.made_for != order.drafts && order.error.empty())) {
    order.made_for = order.drafts;
    lock.unlock();
    order.made.resize((1 + order.made_for.size()) * num_words_);
    std::string error;
    try {
      text.fill_masks(order.made_for, num_words_, order.made);
    } catch (const GrammarError& thrown) {
      error = thrown.what();
    }
    lock.lock();
    order.error = std::move(error);
    order.has_made = true;
  }
  if (order.is_open) deliver(order);
  order.is_taken = false;
}

void MaskThreads::deliver(MaskOrder& order) {
  if (order.error.empty()) {
    std::ranges::copy(order.made, order.masks.begin());
  } else {
    std::ranges::fill(order.masks, 0);
  }
  order.is_open = order.has_made = false;
  if (--num_left_ > 0) return;
  const std::lock_guard lock(mutex_);  // the waiting thread looks, or sleeps already
  all_made_.notify_one();
}

}  // namespace tl
