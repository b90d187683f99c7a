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
  {
    const std::lock_guard lock(mutex_);
    for (const auto& text : ordered_) text->order.is_open = false;  // an error may have come before close()
    ordered_.clear();
    num_left_ = orders.size();
    for (const Order& order : orders) {
      ordered_.push_back(order.text);
      MaskOrder& own = order.text->order;
      own.drafts.assign(order.drafts.begin(), order.drafts.end());
      own.masks = order.masks;
      own.is_open = true;
      if (!std::exchange(own.is_taken, true)) texts_.push_back(order.text);
    }
  }
  has_texts_.notify_all();
}

std::size_t MaskThreads::wait(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  all_made_.wait_for(lock, timeout, [this] { return num_left_ == 0; });
  return num_left_;
}

bool MaskThreads::close(std::size_t index, std::string& error) {
  const std::lock_guard lock(mutex_);
  MaskOrder& order = ordered_[index]->order;
  error = order.error;
  return !std::exchange(order.is_open, false);
}

void MaskThreads::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    has_texts_.wait(lock, [this] { return stopping_ || !texts_.empty(); });
    if (stopping_) return;
    const std::shared_ptr<GuidedText> text = std::move(texts_.front());
    texts_.pop_front();
    make(*text, lock);
    text->order.is_taken = false;
  }
}

// Makes the masks that are ordered, and those that are ordered meanwhile with other drafts.
void MaskThreads::make(GuidedText& text, std::unique_lock<std::mutex>& lock) {
  MaskOrder& order = text.order;
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
  if (order.is_open) deliver(text);
}

void MaskThreads::deliver(GuidedText& text) {
  MaskOrder& order = text.order;
  if (order.error.empty()) {
    std::ranges::copy(order.made, order.masks.begin());
  } else {
    std::ranges::fill(order.masks, 0);
  }
  order.is_open = order.has_made = false;
  if (--num_left_ == 0) all_made_.notify_one();
}

}  // namespace tl
