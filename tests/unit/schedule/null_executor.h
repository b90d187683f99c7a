// An executor that computes nothing, so that only the host's work takes time.
#pragma once

#include <deque>

#include "executor/step.h"

namespace tl {

class NullExecutor : public StepExecutor {
 public:
  explicit NullExecutor(int num_slots) : num_slots_(num_slots) {}

  int num_slots() const override { return num_slots_; }
  void set_slot(int, std::shared_ptr<const SlotParams>, std::span<const std::int32_t>, int) override {}
  void launch(const StepBatch& batch) override { launched_.push_back(batch.rows.size()); }
  void wait(StepResult& result) override {
    result.rows.resize(launched_.front());
    for (RowResult& row : result.rows) {
      row.tokens.clear();
      row.tokens.push_back(1);
    }
    launched_.pop_front();
  }

 private:
  int num_slots_;
  std::deque<std::size_t> launched_;
};

}  // namespace tl
