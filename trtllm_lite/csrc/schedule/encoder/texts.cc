#include "schedule/encoder/texts.h"

#include <set>
#include <stdexcept>
#include <utility>

namespace tl {

std::optional<Texts::Index> Texts::find(RequestId id) const {
  const auto found = indices_.find(id);
  return found == indices_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<Texts::Index> Texts::all() const {
  std::vector<Index> found;
  for (Index index = 0; index < nodes_.size(); ++index) {
    if (nodes_[index].request) found.push_back(index);
  }
  return found;
}

void Texts::add(std::unique_ptr<Request> request) {
  Index index = static_cast<Index>(nodes_.size());
  if (unused_.empty()) {
    nodes_.emplace_back();
  } else {
    index = unused_.back();
    unused_.pop_back();
  }
  request->rank = flows_.add(request->spec.flow, request->num_prompt, request->spec.priority);
  indices_.emplace(request->id, index);
  waiting_.insert(request->rank, index);
  if (request->deadline) deadlines_.add(*request->deadline, index);
  nodes_[index].request = std::move(request);
}

void Texts::run(Index index, Clock::time_point now) {
  Node& node = nodes_[index];
  Request& request = *node.request;
  waiting_.erase(request.rank, index);
  flows_.serve(request.spec.flow, request.num_prompt);
  if (!request.admitted) request.admitted = now;
  node.runs = true;
  ++num_running_;
}

void Texts::requeue(Index index) {
  Node& node = nodes_[index];
  node.runs = false;
  --num_running_;
  waiting_.insert(node.request->rank, index);
  flows_.put_back(node.request->spec.flow);
}

void Texts::end(Index index, FinishReason reason, std::string message, const EventSink& sink) {
  Node& node = nodes_[index];
  const std::unique_ptr<Request> request = std::move(node.request);
  if (node.runs) {
    --num_running_;
  } else {
    waiting_.erase(request->rank, index);
    flows_.remove(request->spec.flow);
  }
  if (request->deadline) deadlines_.remove(*request->deadline, index);
  node.runs = false;
  ++node.generation;
  indices_.erase(request->id);
  unused_.push_back(index);
  sink.events.ends.push_back({request->id, reason, std::move(message), request->timings(sink.now)});
}

void Texts::check_integrity() const {
  const auto check = [](bool ok, const char* what) {
    if (!ok) throw std::logic_error(std::string("texts: ") + what);
  };
  int num_alive = 0, num_running = 0;
  std::set<std::uint64_t> flows;
  for (const Node& node : nodes_) {
    num_alive += node.request != nullptr;
    num_running += node.runs;
    check(node.request != nullptr || !node.runs, "an ended text runs");
    if (node.request != nullptr && !node.runs) flows.insert(node.request->spec.flow);
  }
  check(num_alive == size() && num_running == num_running_, "texts are miscounted");
  check(waiting_.size() + num_running_ == size(), "a text is lost or listed twice");
  check(std::ssize(flows) == flows_.size(), "flows are miscounted");
  for (const auto& [rank, index] : waiting_.entries()) {
    const Node& node = nodes_[index];
    check(node.request != nullptr && !node.runs && node.request->rank == rank, "wrong queue entry");
  }
}

}  // namespace tl
