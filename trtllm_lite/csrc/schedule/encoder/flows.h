// The order of service of texts, which shares an encoder's time fairly among those who send texts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "schedule/rank.h"

namespace tl {

// A flow is the texts of one caller that wait, such as those of one HTTP request. Flows are served in turn by the
// tokens of their texts (weighted fair queueing: Demers, Keshav and Shenker, 1989). A text's place is the virtual time
// at which its flow would begin it if all flows were served at once; a flow's first text begins now, and each later one
// at the end of the one before. Of two flows that wait all the time, neither is served more tokens than the other by
// more than a text of each.
//
// Priorities move texts ahead in virtual time: a level is worth the time of `ageing_window` of the longest texts. So a
// greater priority is served first, whatever its flow has been served, until texts of a lower one have aged by that
// much: virtual time goes on with everything that is served, so that every text is served.
class Flows {
 public:
  // `longest`: the most tokens of a text.
  Flows(int ageing_window, int longest) : level_(static_cast<std::int64_t>(ageing_window) * longest * kOneToken) {}

  int size() const { return static_cast<int>(flows_.size()); }

  // Adds a text to a flow, which begins with it if it does not wait yet. Returns the text's place.
  Rank add(std::uint64_t flow, int num_tokens, int priority) {
    Flow& found = flows_[flow];
    ++found.num_waiting;
    const std::int64_t start = std::max(now_, found.next);
    found.next = start + num_tokens * kOneToken;
    return {start - priority * level_, num_arrivals_++};
  }

  // Notes that a text of the flow is computed.
  void serve(std::uint64_t flow, int num_tokens) {
    now_ += num_tokens * kOneToken / size();
    remove(flow);
  }
  // Notes that a text no longer waits.
  void remove(std::uint64_t flow) {
    const auto found = flows_.find(flow);
    if (--found->second.num_waiting == 0) flows_.erase(found);
  }
  // Notes that a text waits again; its place remains.
  void put_back(std::uint64_t flow) { ++flows_[flow].num_waiting; }

 private:
  static constexpr std::int64_t kOneToken = 1 << 16;  // the time of a token, so that shares of it are whole numbers
  struct Flow {
    std::int64_t next = 0;  // the virtual time at which the next text that arrives would begin
    int num_waiting = 0;
  };

  std::int64_t level_;    // the virtual time that a level of priority is worth
  std::int64_t now_ = 0;  // tokens served so far, each divided by the number of flows at that time
  std::uint64_t num_arrivals_ = 0;
  std::unordered_map<std::uint64_t, Flow> flows_;
};

}  // namespace tl
