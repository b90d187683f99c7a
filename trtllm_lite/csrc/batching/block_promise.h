// Blocks that a running request may still take, whatever else happens.
#pragma once

#include <utility>

namespace tl {

// All promises of one cache. Blocks that nobody references, less those, are free for anybody.
class PromiseBook {
 public:
  PromiseBook() = default;
  PromiseBook(const PromiseBook&) = delete;
  PromiseBook& operator=(const PromiseBook&) = delete;

  int num_blocks() const { return num_blocks_; }
  // Whether anybody has a promise, of no blocks perhaps.
  bool empty() const { return num_promises_ == 0; }

 private:
  friend class Promise;
  int num_blocks_ = 0;
  int num_promises_ = 0;
};

// Part of a running request, and void with its end. The book must outlive it.
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
  // So many of them are taken; a negative number has come back.
  void take(int num_blocks) {
    num_blocks_ -= num_blocks;
    book_->num_blocks_ -= num_blocks;
  }

 private:
  PromiseBook* book_;  // null after a move
  int num_blocks_ = 0;
};

}  // namespace tl
