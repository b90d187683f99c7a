// The moves of a beam search, by which the KV cache forks its sequences.
#pragma once

#include <cstdint>

namespace tl {

// Beam i of the next step continues beam `parent` of this step with `token`: the KV cache forks accordingly.
struct BeamMove {
  std::int32_t parent;
  std::int32_t token;
};

}  // namespace tl
