// Threads that make the masks of guided texts, beside whatever else is done. A text that takes long holds up nobody who
// stops waiting for it: its masks are made all the same, and are there when they are ordered again.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "sampling/guided_text.h"

namespace tl {

// Orders come from one thread.
class MaskThreads {
 public:
  struct Order {
    std::shared_ptr<GuidedText> text;
    std::span<const std::int32_t> drafts;  // as GuidedText::fill_masks, whose masks these are
    std::span<std::uint32_t> masks;
  };

  // `num_words` of a mask.
  MaskThreads(int num_threads, std::size_t num_words);
  ~MaskThreads();
  MaskThreads(const MaskThreads&) = delete;
  MaskThreads& operator=(const MaskThreads&) = delete;

  // Begins with the orders, each of another text, that replace those before. A text grows only when its masks have been
  // made.
  void start(std::span<const Order> orders);
  // Waits until all masks are made, for no longer than `timeout`; returns how many orders are left.
  std::size_t wait(std::chrono::microseconds timeout);
  // Whether the masks of order `index` are made; of one that is left they stay as they are, and nobody writes them any
  // more. `error` is not empty if the grammar cannot be followed any further: then they forbid all tokens.
  bool close(std::size_t index, std::string& error);

 private:
  void work();
  std::shared_ptr<GuidedText> next();  // null: the threads are to end
  void make(GuidedText& text);
  void deliver(MaskOrder& order);

  const std::size_t num_words_;
  std::vector<std::shared_ptr<GuidedText>> ordered_;  // that were started last, in the order of these
  std::atomic<std::size_t> num_left_ = 0;
  std::mutex mutex_;  // of what follows
  std::condition_variable has_texts_, all_made_;
  std::deque<std::shared_ptr<GuidedText>> texts_;  // that no thread has taken up
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tl
