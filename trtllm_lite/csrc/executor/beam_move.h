// The moves of a beam search. The KV cache forks its sequences accordingly.
#pragma once

#include <cstdint>

namespace tl {

// Beam i of the next step continues beam `parent` of this step with `token`.
struct BeamMove {
  std::int32_t parent;
  std::int32_t token;
};

}  // namespace tl
