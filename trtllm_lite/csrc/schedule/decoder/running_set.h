// The requests that run, in order of rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "schedule/request_table.h"

namespace tl {

// The table must outlive the set and have all of its requests.
class RunningSet {
 public:
  using Index = RequestTable::Index;

  RunningSet(const RequestTable& table, int max_size) : table_(table) { order_.reserve(max_size); }

  auto begin() const { return order_.begin(); }
  auto end() const { return order_.end(); }
  Index at(std::size_t position) const { return order_[position]; }
  Index last() const { return order_.back(); }
  bool empty() const { return order_.empty(); }
  int size() const { return static_cast<int>(order_.size()); }
  // The most rows that these requests can have in one step.
  int num_rows() const { return num_rows_; }

  void insert(Index index) {
    const Request& request = table_.request(index);
    const auto behind = [&](Index other) { return request.rank < table_.request(other).rank; };
    order_.insert(std::ranges::find_if(order_, behind), index);
    num_rows_ += request.max_rows();
  }
  void erase(Index index) {
    std::erase(order_, index);
    num_rows_ -= table_.request(index).max_rows();
  }

 private:
  const RequestTable& table_;
  std::vector<Index> order_;
  int num_rows_ = 0;
};

}  // namespace tl
