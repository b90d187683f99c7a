// Promises of blocks. A promise of n blocks guarantees that a running request can take n more blocks.
#pragma once

#include <utility>

namespace tl {

// All promises of one cache. Unreferenced blocks beyond the promised number are free for any request.
class PromiseBook {
 public:
  PromiseBook() = default;
  PromiseBook(const PromiseBook&) = delete;
  PromiseBook& operator=(const PromiseBook&) = delete;

  int num_blocks() const { return num_blocks_; }
  // Whether there is a promise, even one of no blocks.
  bool empty() const { return num_promises_ == 0; }

 private:
  friend class Promise;
  int num_blocks_ = 0;
  int num_promises_ = 0;
};

// A running request's promise, which ends with the request. The book must outlive it.
class Promise {
 public:
  Promise(PromiseBook& book, int num_blocks) : book_(&book) {
    ++book.num_promises_;
    take(-num_blocks);
  }
  Promise(Promise&& other) noexcept
      : book_(std::exchange(other.book_, nullptr)), num_blocks_(std::exchange(other.num_blocks_, 0)) {}
  Promise& operator=(Promise&& other) noexcept {
    std::swap(book_, other.book_);
    std::swap(num_blocks_, other.num_blocks_);
    return *this;
  }
  ~Promise() {
    if (book_ == nullptr) return;
    take(num_blocks_);
    --book_->num_promises_;
  }

  int num_blocks() const { return num_blocks_; }
  // Notes that `num_blocks` promised blocks are taken or, if negative, returned.
  void take(int num_blocks) {
    num_blocks_ -= num_blocks;
    book_->num_blocks_ -= num_blocks;
  }

 private:
  PromiseBook* book_;  // null after a move
  int num_blocks_ = 0;
};

}  // namespace tl
