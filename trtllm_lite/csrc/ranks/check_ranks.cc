#include "ranks/check_ranks.h"

#include <string>

#include "errors.h"

namespace tl {

void check_ranks(std::span<const Engine* const> engines) {
  const std::int64_t tp_size = engines.front()->manifest().mapping.tp_size;
  if (tp_size != std::ssize(engines)) {
    throw EngineError("expected the engines of all " + std::to_string(tp_size) + " ranks, found " +
                      std::to_string(engines.size()) + ": pass the directory that build wrote");
  }
  for (std::size_t rank = 0; rank < engines.size(); ++rank) {
    const RankMapping& found = engines[rank]->manifest().mapping;
    if (found.tp_size != tp_size || found.rank != static_cast<std::int64_t>(rank)) {
      throw EngineError("expected the engine of rank " + std::to_string(rank) + " of " + std::to_string(tp_size) +
                        ", found rank " + std::to_string(found.rank) + " of " + std::to_string(found.tp_size) +
                        ": copy the directory again or build it again");
    }
    if (engines[rank]->plan_json() != engines.front()->plan_json()) {
      throw EngineError("rank " + std::to_string(rank) +
                        " has another plan than rank 0, as of another build: build the engine again");
    }
  }
}

}  // namespace tl
