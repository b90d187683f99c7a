// The interface of what guesses how a sequence goes on.
#pragma once

#include <cstdint>
#include <span>

#include "batching/step.h"

namespace tl {

// The guesses for one request. Wrong ones cost time, nothing else.
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Appends up to `most` tokens that may follow `tokens`, of which those of the call before are the beginning.
  virtual void draft(std::span<const std::int32_t> tokens, int most, TokenRun& out) = 0;
  // The request has ended, not with an error, and has generated these tokens.
  virtual void end(std::span<const std::int32_t> generated) { (void)generated; }
};

}  // namespace tl
