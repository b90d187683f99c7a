// Admission of waiting requests to the running ones.
#pragma once

#include <cstdint>

#include "schedule/decoder/lending.h"
#include "schedule/decoder/prefill.h"
#include "schedule/decoder/schedule_state.h"
#include "schedule/decoder/step_shares.h"
#include "schedule/decoder/step_writer.h"
#include "schedule/event_sink.h"

namespace tl {

// Decides which waiting requests run: those at the head of the queue, for which there are slots, blocks, and room in
// the step. The first chunk of an admitted prompt is in the step. A request that the executor refuses ends with an
// error.
class Admission {
 public:
  // How often a request is postponed for a running request that computes a shared prefix. For most prefixes this is
  // long enough.
  static constexpr int kMaxHolds = 16;

  // Borrows the arguments.
  Admission(ScheduleState& state, const Prefill& prefill, Lending& lending)
      : state_(state), prefill_(prefill), lending_(lending) {}

  // Whether the first waiting prompt needs a step without other tokens: without chunked context, a long prompt would
  // wait as long as other requests decode. It gets a step of its own, at most every other step.
  bool head_needs_a_step_of_its_own() const;
  // Admits requests in the order of the queue.
  void admit(const StepShares& shares, StepWriter& step, const EventSink& sink);
  // Lets short prompts pass longer waiting ones, where they leave `kept` tokens of the step's budget; a request at the
  // head of the queue is passed at most `ageing_window` times.
  void admit_short_prompts(int kept, StepShares& shares, StepWriter& step, const EventSink& sink);

  // Notes what the step that was prepared computes.
  void prepared(const StepBatch& batch) { last_step_decoded_ = batch.num_decode_tokens > 0; }

 private:
  using Index = RequestTable::Index;
  enum class Verdict : std::uint8_t { kAdmitted, kHeld, kRefused, kNoRoom };
  // What the cache has of a waiting request.
  struct Found {
    PrefixHit hit;
    int num_computed;  // tokens that need not be computed
  };

  Verdict try_admit(Index index, StepWriter& step, const EventSink& sink);
  bool may_run(const Request& request) const;
  Found find(Index index);
  bool fits(const Request& request, const Found& found) const;
  bool claim_slot(Index index, const Slot& slot, const EventSink& sink);
  Grant grant(Index index, const PrefixHit& hit, Slot slot, StepWriter& step);
  void start(Index index, const Found& found, Grant granted, StepWriter& step, Clock::time_point now);
  int num_uncomputed(Index index) const;

  ScheduleState& state_;
  const Prefill& prefill_;
  Lending& lending_;
  bool last_step_decoded_ = false;
};

}  // namespace tl
