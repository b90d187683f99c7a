// All living requests, found by id, by index, or by a reference that detects whether its request still lives.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedule/request_state.h"

namespace tl {

class RequestTable {
 public:
  using Index = std::uint32_t;

  int size() const { return static_cast<int>(indices_.size()); }

  Index add(RequestState state) {
    Index index = static_cast<Index>(nodes_.size());
    if (unused_.empty()) {
      nodes_.emplace_back();
    } else {
      index = unused_.back();
      unused_.pop_back();
    }
    indices_.emplace(request_of(state).id, index);
    nodes_[index].state.emplace(std::move(state));
    return index;
  }

  RequestState& state(Index index) { return *nodes_[index].state; }
  const RequestState& state(Index index) const { return *nodes_[index].state; }
  Running& running(Index index) { return std::get<Running>(*nodes_[index].state); }
  const Running& running(Index index) const { return std::get<Running>(*nodes_[index].state); }
  Request& request(Index index) const { return request_of(*nodes_[index].state); }

  RequestRef ref(Index index) const { return {index, nodes_[index].generation}; }
  bool alive(RequestRef ref) const { return nodes_[ref.index].generation == ref.generation; }
  std::optional<Index> find(RequestId id) const {
    const auto found = indices_.find(id);
    return found == indices_.end() ? std::nullopt : std::optional(found->second);
  }

  // Removes the request. Its resources are released, and references to it become invalid.
  std::unique_ptr<Request> remove(Index index) {
    Node& node = nodes_[index];
    std::unique_ptr<Request> request = std::visit([](auto& s) { return finish(std::move(s)); }, *node.state);
    node.state.reset();
    ++node.generation;
    indices_.erase(request->id);
    unused_.push_back(index);
    return request;
  }

  template <typename Fn>
  void for_each(Fn&& fn) {
    for (Index index = 0; index < nodes_.size(); ++index) {
      if (nodes_[index].state) fn(index);
    }
  }

 private:
  struct Node {
    std::optional<RequestState> state;
    std::uint32_t generation = 0;
  };

  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  std::unordered_map<RequestId, Index> indices_;
};

}  // namespace tl
