// The events of a request that its consumer receives: tokens as they come, then one end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "schedule/request.h"

namespace tl {

// The results of a step for a request.
struct TokenEvent {
  RequestId id;
  TokenRun tokens;                      // empty if there are only outputs: of prompt positions or a beam search
  std::unique_ptr<RowOutputs> outputs;  // null if the request asked for none
  std::int32_t index;                   // index of the first of the tokens among the generated ones, from 0
};

struct RequestEnd {
  RequestId id;
  FinishReason reason;
  std::string message;  // the error message, for kError
  RequestTimings timings;
};

// A request's tokens come before its end, also within one batch.
struct EventBatch {
  std::vector<TokenEvent> tokens;
  std::vector<RequestEnd> ends;
  // Requests wait for blocks whose memory is lent (EventLoop::lend_slabs).
  bool short_of_blocks = false;

  bool empty() const { return tokens.empty() && ends.empty() && !short_of_blocks; }
  void clear() {
    tokens.clear();
    ends.clear();
    short_of_blocks = false;
  }
};

}  // namespace tl
