// The events of a request that its consumer gets: tokens as they come, then one end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batching/request.h"

namespace tl {

struct TokenEvent {
  RequestId id;
  std::int32_t token;                   // kNoToken: only outputs, of prompt positions or of a beam search
  std::int32_t index;                   // of the generated token, from 0
  std::unique_ptr<RowOutputs> outputs;  // as the executor made them; null if the request asked for none
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
