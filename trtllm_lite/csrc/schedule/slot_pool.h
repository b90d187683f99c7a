// Sampling slots of the executor. A running request owns its slot, which is reused only after the request's last step
// has ended.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace tl {

class SlotPool;

class Slot {
 public:
  Slot(Slot&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
  Slot& operator=(Slot&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(index_, other.index_);
    return *this;
  }
  inline ~Slot();

  int index() const { return index_; }

 private:
  friend class SlotPool;
  Slot(SlotPool* pool, int index) : pool_(pool), index_(index) {}

  SlotPool* pool_;  // null after a move
  int index_;
};

// The pool must outlive its slots.
class SlotPool {
 public:
  explicit SlotPool(int num_slots) {
    for (int slot = num_slots - 1; slot >= 0; --slot) ready_.push_back(slot);
  }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  int num_ready() const { return static_cast<int>(ready_.size()); }
  std::optional<Slot> acquire() {
    if (ready_.empty()) return std::nullopt;
    const int slot = ready_.back();
    ready_.pop_back();
    return Slot(this, slot);
  }

  void step_launched(std::uint64_t step) { launched_ = step; }
  void step_ended(std::uint64_t step) {
    ended_ = step;
    while (!in_flight_.empty() && in_flight_.front().last_step <= step) {
      ready_.push_back(in_flight_.front().slot);
      in_flight_.pop_front();
    }
  }

 private:
  friend class Slot;
  struct Released {
    int slot;
    std::uint64_t last_step;
  };

  void release(int slot) {
    if (launched_ <= ended_) {
      ready_.push_back(slot);
    } else {
      in_flight_.push_back({slot, launched_});
    }
  }

  std::vector<int> ready_;
  std::deque<Released> in_flight_;
  std::uint64_t launched_ = 0;
  std::uint64_t ended_ = 0;
};

inline Slot::~Slot() {
  if (pool_ != nullptr) pool_->release(index_);
}

}  // namespace tl
