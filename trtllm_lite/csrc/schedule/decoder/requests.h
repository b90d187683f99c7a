// All living requests, from their arrival to their end.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "schedule/deadlines.h"
#include "schedule/decoder/kv_blocks.h"
#include "schedule/decoder/running_set.h"
#include "schedule/event_sink.h"
#include "schedule/request_table.h"
#include "schedule/scheduler_config.h"
#include "schedule/wait_queue.h"

namespace tl {

// Owns the requests and the lists that they are in: each either waits or runs, and each with a deadline is listed by
// it. Requests move between the lists only here, so that state and lists never contradict each other.
class Requests {
 public:
  using Index = RequestTable::Index;

  // Borrows the arguments.
  Requests(const SchedulerConfig& config, KvBlocks& blocks);

  RequestTable& table() { return table_; }
  const RequestTable& table() const { return table_; }
  const WaitQueue& waiting() const { return waiting_; }
  const RunningSet& running() const { return running_; }
  const Deadlines& deadlines() const { return deadlines_; }
  int num_drafters() const { return num_drafters_; }  // living requests that may draft

  void add(std::unique_ptr<Request> request, Ranks& ranks);
  // Lets a waiting request run with what admission gives to it. If it is swapped out, `grant` has the sequence that was
  // swapped in.
  void run(Index index, Grant grant);
  // Takes what a running request holds; it waits again and is computed again.
  void requeue(Index index);
  // Does the same, but moves its cached content to the host. Returns false and changes nothing if the host has too few
  // blocks.
  bool swap_out(Index index, StepBatch& batch);
  // Requests that were swapped out by `first_step` or a later step have lost their copies and are computed again.
  void drop_swapped_since(std::uint64_t first_step);
  // Ends a request in any state. After an error the cache forgets what it may have spoiled.
  void end(Index index, FinishReason reason, std::string message, const EventSink& sink);

 private:
  const SchedulerConfig& config_;
  KvBlocks& blocks_;
  RequestTable table_;
  WaitQueue waiting_;
  RunningSet running_;
  Deadlines deadlines_;
  int num_drafters_ = 0;
};

}  // namespace tl
