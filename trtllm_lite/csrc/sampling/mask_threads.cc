#include "sampling/mask_threads.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "host/cpu_count.h"
#include "host/niceness.h"

namespace tl {
namespace {

constexpr int kMinThreads = 2;  // two, so that other texts go on while one takes long
constexpr int kMaxThreads = 8;

// The most threads for slow texts, beside the others. While all of them are busy, a late text keeps its thread.
constexpr std::size_t kMaxSlow = 32;

// Masks that take more CPU time than this, a tenth of a step's time limit, are slow: other rows do not wait for them.
constexpr std::chrono::milliseconds kSlow{10};

// What is added to the nice value of threads for slow texts: beside a thread that computes a step, such a thread gets
// a sixtieth of a core.
constexpr int kNicer = 19;

// The CPU time of the calling thread.
std::chrono::nanoseconds core_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

bool has_waited_enough(const MasksLeft& left, std::size_t num_rows, std::chrono::nanoseconds waited,
                       std::chrono::nanoseconds computing, std::chrono::nanoseconds alone) {
  const std::size_t num_others = num_rows - left.all;
  if (num_others == 0) return waited >= alone;
  return waited * std::max(num_others, left.fresh) >= computing * left.fresh;
}

MaskThreads::MaskThreads(std::size_t num_words)
    : MaskThreads(std::clamp(resolve_num_threads(0), kMinThreads, kMaxThreads), num_words) {}

MaskThreads::MaskThreads(int num_threads, std::size_t num_words) : num_words_(num_words) {
  for (int i = 0; i < num_threads; ++i) add_thread(false);
}

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_texts_.notify_all();
  for (MaskThread& thread : threads_) thread.thread.join();
}

void MaskThreads::add_thread(bool is_slow) {
  MaskThread& added = threads_.emplace_back();
  added.is_slow = is_slow;
  num_slow_ += is_slow ? 1 : 0;
  added.thread = std::thread([this, &added] { work(added); });
}

void MaskThreads::start(std::span<const Order> orders) {
  std::string error;
  for (std::size_t i = 0; i < ordered_.size(); ++i) close(i, error);  // an error may have come before
  ordered_.clear();
  num_left_ = num_fresh_ = orders.size();
  std::vector<std::shared_ptr<GuidedText>> idle, slow;
  for (const Order& given : orders) {
    ordered_.push_back({given.text, given.slot});
    MaskOrder& order = given.text->order;
    const std::lock_guard lock(order.mutex);
    order.drafts.assign(given.drafts.begin(), given.drafts.end());
    order.masks = given.masks;
    order.is_open = true;
    order.is_fresh = !order.is_slow;
    if (order.is_slow) --num_fresh_;
    if (!std::exchange(order.is_taken, true)) (order.is_slow ? slow : idle).push_back(given.text);
  }
  {
    const std::lock_guard lock(mutex_);
    texts_.insert(texts_.end(), idle.begin(), idle.end());
    slow_texts_.insert(slow_texts_.end(), slow.begin(), slow.end());
    while (num_slow_ < std::min(kMaxSlow, slow_texts_.size())) add_thread(true);
  }
  has_texts_.notify_all();
}

MasksLeft MaskThreads::wait(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  all_made_.wait_for(lock, timeout, [this] { return num_left_ == 0; });
  const std::size_t num_fresh = num_fresh_;  // read before num_left_, because it is decremented first
  return {std::max<std::size_t>(num_left_, num_fresh), num_fresh};
}

bool MaskThreads::close(std::size_t index, std::string& error) {
  MaskOrder& order = ordered_[index].text->order;
  const std::lock_guard lock(order.mutex);
  error = order.error;
  if (!std::exchange(order.is_open, false)) return true;
  late_.push_back(ordered_[index]);
  leave_to_slow(order);
  return false;
}

std::vector<int> MaskThreads::take_woken() {
  std::vector<int> slots;
  std::erase_if(late_, [&](const Late& late) {
    MaskOrder& order = late.text->order;
    const std::lock_guard lock(order.mutex);
    leave_to_slow(order);
    if (order.is_taken) return false;
    slots.push_back(late.slot);
    return true;
  });
  return slots;
}

// Turns the thread that makes these late masks into one for slow texts, and starts another thread in its place.
void MaskThreads::leave_to_slow(MaskOrder& order) {
  if (order.thread == nullptr) return;
  order.is_slow = true;
  MaskThread& thread = *order.thread;
  const std::lock_guard lock(mutex_);
  if (thread.is_slow || num_slow_ == kMaxSlow) return;
  thread.is_slow = true;
  ++num_slow_;
  make_nicer(thread.id, kNicer);
  add_thread(false);
}

void MaskThreads::work(MaskThread& self) {
  self.id = own_thread_id();
  {
    const std::lock_guard lock(mutex_);
    if (self.is_slow) make_nicer(self.id, kNicer);
  }
  while (const std::shared_ptr<GuidedText> text = next(self)) make(*text, self);
}

std::shared_ptr<GuidedText> MaskThreads::next(MaskThread& self) {
  std::unique_lock lock(mutex_);
  std::deque<std::shared_ptr<GuidedText>>& texts = self.is_slow ? slow_texts_ : texts_;
  has_texts_.wait(lock, [&] { return stopping_ || !texts.empty(); });
  if (stopping_) return nullptr;
  std::shared_ptr<GuidedText> text = std::move(texts.front());
  texts.pop_front();
  return text;
}

// Makes the ordered masks, and the masks that are ordered for other drafts meanwhile.
void MaskThreads::make(GuidedText& text, MaskThread& self) {
  MaskOrder& order = text.order;
  std::unique_lock lock(order.mutex);
  order.thread = &self;
  while (!order.has_made || (order.made_for != order.drafts && order.error.empty())) {
    order.made_for = order.drafts;
    lock.unlock();
    order.made.resize((1 + order.made_for.size()) * num_words_);
    std::string error;
    const std::chrono::nanoseconds begin = core_time();
    try {
      text.fill_masks(order.made_for, num_words_, order.made);
    } catch (const GrammarError& thrown) {
      error = thrown.what();
    }
    const bool is_slow = core_time() - begin > kSlow;
    lock.lock();
    order.is_slow = is_slow;
    order.error = std::move(error);
    order.has_made = true;
  }
  if (order.is_open) deliver(order);
  order.is_taken = false;
  order.thread = nullptr;
}

void MaskThreads::deliver(MaskOrder& order) {
  if (order.error.empty()) {
    std::ranges::copy(order.made, order.masks.begin());
  } else {
    std::ranges::fill(order.masks, 0);
  }
  order.is_open = order.has_made = false;
  if (order.is_fresh) --num_fresh_;
  if (--num_left_ > 0) return;
  const std::lock_guard lock(mutex_);  // the waiting thread has not looked yet, or sleeps
  all_made_.notify_one();
}

}  // namespace tl
