// The interface of drafters, which propose draft tokens for sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "executor/step.h"

namespace tl {

struct Request;

// A drafter's state for a request. The request owns it.
struct DraftState {
  virtual ~DraftState() = default;

  bool proposes = true;  // proposes drafts that may be rejected
  bool forces = false;   // knows tokens that a grammar forces
};

// A request whose next row may bring drafts. All its tokens are known, and all but the newest are computed.
struct DraftTask {
  Request& request;
  DraftState* state;                // the drafter's state for the request
  std::int32_t slot;                // its block table has room for the newest token and `most` more
  int most;                         // 0: no drafts are wanted
  TokenRun drafts;                  // result: up to `most` drafts
  int num_behind = 0;               // tokens that the drafter must process before it can propose drafts
  std::optional<bool> forced = {};  // result: whether the drafts are forced by the grammar; empty if forced tokens were
                                    // not looked for
};

// Seconds that a call took to propose drafts, and to process tokens that came while none were asked for.
struct DraftTimes {
  double drafting = 0, catching_up = 0;
  int num_caught_up = 0;
};

// Proposes draft tokens for all requests of a scheduler. Wrong drafts cost time but never change results.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Returns the state for a request; null if it gets no drafts.
  virtual std::unique_ptr<DraftState> start(const Request& request) = 0;
  // Time for catching up with one token, as a share of the time in which the target model computes one.
  virtual double relative_cost() const = 0;
  // Fills in how far behind each task of a step in preparation is, and the forced tokens of requests that do not pause
  // drafting. Tasks that must wait for a step get `most` = 0. `batch` has the copies and table updates with which the
  // step begins; more are added as needed.
  virtual void look_at(const StepBatch& batch, std::span<DraftTask> tasks) = 0;
  // Proposes drafts for tasks that look_at() has seen; `most` may have been lowered since. An exception ends all
  // requests.
  virtual DraftTimes draft(std::span<DraftTask> tasks) = 0;
  // Called for every step once all of it is known, before the next one is prepared.
  virtual void launched(const StepBatch& batch) = 0;
  // Notes that a request has ended without error, having generated these tokens.
  virtual void end(DraftState& state, std::span<const std::int32_t> generated) = 0;
};

}  // namespace tl
