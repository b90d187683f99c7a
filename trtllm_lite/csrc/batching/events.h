// The events of a request that its consumer gets: tokens as they come, then one end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batching/request.h"

namespace tl {

// What a step comes to for a request.
struct TokenEvent {
  RequestId id;
  TokenRun tokens;                      // none: only outputs, of prompt positions or of a beam search
  std::unique_ptr<RowOutputs> outputs;  // as the executor made them; null if the request asked for none
  std::int32_t index;                   // of the first of the tokens among the generated ones, from 0
};

struct RequestEnd {
  RequestId id;
  FinishReason reason;
  std::string message;  // what went wrong, for kError
  RequestTimings timings;
};

// A request's tokens come before its end, also within one batch.
struct EventBatch {
  std::vector<TokenEvent> tokens;
  std::vector<RequestEnd> ends;

  bool empty() const { return tokens.empty() && ends.empty(); }
  void clear() {
    tokens.clear();
    ends.clear();
  }
};

}  // namespace tl
