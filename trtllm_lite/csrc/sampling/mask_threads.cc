#include "sampling/mask_threads.h"

#include <algorithm>
#include <utility>

#ifdef __linux__
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "cpu_count.h"

namespace tl {
namespace {

constexpr int kMinThreads = 2;  // where one text takes long, others go on
constexpr int kMaxThreads = 8;

// Threads beyond the others that may be at texts which nobody waits for. What is late then keeps its thread.
constexpr int kMaxGivenUp = 8;

// How much nicer than the process threads are. Beside a thread that computes a step, one of the first has a tenth of a
// core, and one of the second a sixtieth: nobody waits for what it makes before the next step.
constexpr int kNicer = 10, kNicest = 19;

#ifdef __linux__
int own_id() { return static_cast<int>(syscall(SYS_gettid)); }

// Threads that cannot be made nicer go on as they are.
void make_nicer(int id, int by) {
  const int usual = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
  setpriority(PRIO_PROCESS, static_cast<id_t>(id), std::min(usual + by, kNicest));
}
#else
int own_id() { return 0; }
void make_nicer(int, int) {}
#endif

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
  for (int i = 0; i < num_threads; ++i) add_thread();
}

MaskThreads::~MaskThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  has_texts_.notify_all();
  for (MaskThread& thread : threads_) thread.thread.join();
}

void MaskThreads::add_thread() {
  MaskThread& added = threads_.emplace_back();
  added.thread = std::thread([this, &added] { work(added); });
}

void MaskThreads::start(std::span<const Order> orders) {
  std::string error;
  for (std::size_t i = 0; i < ordered_.size(); ++i) close(i, error);  // an error may have come before
  join_given_up();
  ordered_.clear();
  num_left_ = orders.size();
  num_fresh_ = static_cast<std::size_t>(
      std::ranges::count_if(orders, [](const Order& order) { return !order.text->was_late(); }));
  std::vector<std::shared_ptr<GuidedText>> idle;
  for (const Order& given : orders) {
    ordered_.push_back(given.text);
    MaskOrder& order = given.text->order;
    const std::lock_guard lock(order.mutex);
    order.drafts.assign(given.drafts.begin(), given.drafts.end());
    order.masks = given.masks;
    order.is_open = true;
    order.is_fresh = !given.text->was_late();
    if (!std::exchange(order.is_taken, true)) idle.push_back(given.text);
  }
  {
    const std::lock_guard lock(mutex_);
    texts_.insert(texts_.end(), idle.begin(), idle.end());
  }
  has_texts_.notify_all();
}

MasksLeft MaskThreads::wait(std::chrono::microseconds timeout) {
  std::unique_lock lock(mutex_);
  all_made_.wait_for(lock, timeout, [this] { return num_left_ == 0; });
  const std::size_t num_fresh = num_fresh_;  // read first: it is the first to fall
  return {std::max<std::size_t>(num_left_, num_fresh), num_fresh};
}

bool MaskThreads::close(std::size_t index, std::string& error) {
  MaskOrder& order = ordered_[index]->order;
  const std::lock_guard lock(order.mutex);
  error = order.error;
  if (!std::exchange(order.is_open, false)) return true;
  ordered_[index]->note_late();
  if (order.thread != nullptr) give_up(*order.thread);
  return false;
}

// Lets the thread end after what it is at, which nobody waits for, and another one take its place.
void MaskThreads::give_up(MaskThread& thread) {
  const std::lock_guard lock(mutex_);
  if (thread.is_given_up || num_given_up_ == kMaxGivenUp) return;
  thread.is_given_up = true;
  ++num_given_up_;
  make_nicer(thread.id, kNicest);
  add_thread();
}

void MaskThreads::join_given_up() {
  const std::lock_guard lock(mutex_);
  std::erase_if(threads_, [](MaskThread& thread) {
    if (thread.is_over) thread.thread.join();
    return thread.is_over;
  });
}

void MaskThreads::work(MaskThread& self) {
  self.id = own_id();
  make_nicer(self.id, kNicer);
  while (const std::shared_ptr<GuidedText> text = next(self)) make(*text, self);
}

std::shared_ptr<GuidedText> MaskThreads::next(MaskThread& self) {
  std::unique_lock lock(mutex_);
  if (!self.is_given_up) has_texts_.wait(lock, [this] { return stopping_ || !texts_.empty(); });
  if (self.is_given_up) {
    --num_given_up_;
    self.is_over = true;
    return nullptr;
  }
  if (stopping_) return nullptr;
  std::shared_ptr<GuidedText> text = std::move(texts_.front());
  texts_.pop_front();
  return text;
}

// Makes the masks that are ordered, and those that are ordered meanwhile with other drafts.
void MaskThreads::make(GuidedText& text, MaskThread& self) {
  MaskOrder& order = text.order;
  std::unique_lock lock(order.mutex);
  order.thread = &self;
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
  const std::lock_guard lock(mutex_);  // the waiting thread looks, or sleeps already
  all_made_.notify_one();
}

}  // namespace tl
