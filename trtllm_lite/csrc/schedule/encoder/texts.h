// All living texts of an encoder, from their arrival to their end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "schedule/deadlines.h"
#include "schedule/encoder/flows.h"
#include "schedule/event_sink.h"
#include "schedule/request.h"
#include "schedule/wait_queue.h"

namespace tl {

// A text waits, or it runs: it is in a step. Texts move between the two only here, so that states and queue never
// contradict each other.
class Texts {
 public:
  using Index = std::uint32_t;

  Texts(int ageing_window, int longest) : flows_(ageing_window, longest) {}

  int size() const { return static_cast<int>(indices_.size()); }
  int num_running() const { return num_running_; }
  const WaitQueue& waiting() const { return waiting_; }
  const Deadlines& deadlines() const { return deadlines_; }
  const Request& request(Index index) const { return *nodes_[index].request; }
  RequestRef ref(Index index) const { return {index, nodes_[index].generation}; }
  bool alive(RequestRef ref) const { return nodes_[ref.index].generation == ref.generation; }
  std::optional<Index> find(RequestId id) const;
  std::vector<Index> all() const;

  void add(std::unique_ptr<Request> request);
  void run(Index index, Clock::time_point now);
  // Lets a running text wait again at its old place.
  void requeue(Index index);
  void end(Index index, FinishReason reason, std::string message, const EventSink& sink);

  // Throws std::logic_error if queue and states contradict each other.
  void check_integrity() const;

 private:
  struct Node {
    std::unique_ptr<Request> request;  // null: the node is unused
    bool runs = false;
    std::uint32_t generation = 0;
  };

  std::vector<Node> nodes_;
  std::vector<Index> unused_;
  std::unordered_map<RequestId, Index> indices_;
  Flows flows_;
  WaitQueue waiting_;
  Deadlines deadlines_;
  int num_running_ = 0;
};

}  // namespace tl
