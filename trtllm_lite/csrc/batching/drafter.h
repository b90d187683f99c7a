// The interface of what guesses how sequences go on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "batching/step.h"

namespace tl {

struct Request;

// What a drafter keeps of a request; the request owns it.
struct DraftState {
  virtual ~DraftState() = default;

  bool guesses = true;  // what may be wrong
  bool forces = false;  // knows at times what has to come, of a request under a grammar
};

// A request whose next row may bring drafts. All tokens of the request are known, and all but the newest are computed.
struct DraftTask {
  Request& request;
  DraftState* state;                // the drafter's own of the request
  std::int32_t slot;                // whose block table has room for the newest token and for `most` behind it
  int most;                         // 0: nothing is asked for
  TokenRun drafts;                  // the answer: up to `most` tokens that may follow
  int num_behind = 0;               // tokens that have to be made up for before anything can be guessed
  std::optional<bool> forced = {};  // whether the answer is what has to come; none: it was not looked for
};

// Seconds that a call took: to guess, and to make up for so many tokens that came while nothing was asked for.
struct DraftTimes {
  double guessing = 0, catching_up = 0;
  int num_caught_up = 0;
};

// Guesses for all requests of a scheduler. Wrong guesses cost time, nothing else.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Null: this request goes without drafts.
  virtual std::unique_ptr<DraftState> start(const Request& request) = 0;
  // What it takes to make up for a token, as a share of what computing one takes the model that it drafts for.
  virtual double relative_cost() const = 0;
  // Says of the tasks of a step in preparation how far behind they are, and of those whose requests do not rest from it
  // whether it is known what has to come; asks nothing of those that have to wait for a step. `batch` has the copies
  // and table updates that the step begins with, of which it may get more, and updates that the tasks need.
  virtual void look_at(const StepBatch& batch, std::span<DraftTask> tasks) = 0;
  // Answers them, looked at before; meanwhile less may be asked for. An exception ends all requests.
  virtual DraftTimes draft(std::span<DraftTask> tasks) = 0;
  // Called for every step when all of it is known, and before the next one is prepared.
  virtual void launched(const StepBatch& batch) = 0;
  // The request has ended, not with an error, and has generated these tokens.
  virtual void end(DraftState& state, std::span<const std::int32_t> generated) = 0;
};

}  // namespace tl
