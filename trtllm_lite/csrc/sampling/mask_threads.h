// Threads that make the masks of guided texts while steps run. A step stops waiting for a text that takes
// long. The text's masks are still made, and are ready when a later step orders them again. The thread that makes them
// becomes one for slow texts, which have the lowest priority, and a new thread takes its place.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sampling/guided_text.h"

namespace tl {

// The numbers of orders whose masks are not made yet: of all orders, and of those whose texts are not known to be slow.
struct MasksLeft {
  std::size_t all = 0, fresh = 0;
};

// Whether a step of `num_rows` rows, whose logits took `computing`, has waited enough for masks: its ready rows,
// together, have waited as long as the late rows would wait for another step. Ready rows do not wait for slow texts. If
// no row is ready, `alone` is the longest wait.
bool has_waited_enough(const MasksLeft& left, std::size_t num_rows, std::chrono::nanoseconds waited,
                       std::chrono::nanoseconds computing, std::chrono::nanoseconds alone);

// A thread of MaskThreads.
struct MaskThread {
  std::thread thread;
  std::atomic<int> id = 0;  // the system's number of the thread; 0 before it runs
  bool is_slow = false;     // it makes masks of slow texts
};

// Makes the masks that one thread orders.
class MaskThreads {
 public:
  struct Order {
    std::shared_ptr<GuidedText> text;
    std::span<const std::int32_t> drafts;  // an argument of GuidedText::fill_masks, as are the masks
    std::span<std::uint32_t> masks;
    int slot = 0;  // slot of the text's request
  };

  // Starts as many threads as the machine has cores for, for masks of `num_words`.
  explicit MaskThreads(std::size_t num_words);
  // Starts a given number of threads.
  MaskThreads(int num_threads, std::size_t num_words);
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Replaces all previous orders by `orders`, no two of one text. Tokens may be added to a text only once its masks
  // have been made.
  void start(std::span<const Order> orders);
  // Waits until all masks are made, for no longer than `timeout`; returns what is left.
  MasksLeft wait(std::chrono::microseconds timeout);
  // Whether the masks of order `index` are made. If they are not, they stay as they are, and no thread writes them any
  // more. `error` is not empty if the grammar cannot be followed any further: then the masks forbid all tokens.
  bool close(std::size_t index, std::string& error);
  // The slots of orders that were closed too early, and whose masks are made now; each once.
  std::vector<int> take_woken();

 private:
  struct Late {
    std::shared_ptr<GuidedText> text;
    int slot;
  };
  void add_thread(bool is_slow);
  void work(MaskThread& self);
  std::shared_ptr<GuidedText> next(MaskThread& self);  // null: the thread is to end
  void make(GuidedText& text, MaskThread& self);
  void deliver(MaskOrder& order);
  void leave_to_slow(MaskOrder& order);

  const std::size_t num_words_;
  std::vector<Late> ordered_;  // texts of the last orders, in their order
  std::vector<Late> late_;     // texts whose orders were closed too early
  std::atomic<std::size_t> num_left_ = 0, num_fresh_ = 0;
  std::mutex mutex_;  // guards the members below
  std::condition_variable has_texts_, all_made_;
  std::deque<std::shared_ptr<GuidedText>> texts_, slow_texts_;  // texts that no thread has taken up
  bool stopping_ = false;
  std::size_t num_slow_ = 0;  // threads for slow texts
  std::list<MaskThread> threads_;
};

}  // namespace tl
