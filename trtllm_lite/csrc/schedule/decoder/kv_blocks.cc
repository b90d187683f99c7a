#include "schedule/decoder/kv_blocks.h"

#include <variant>

namespace tl {

int KvBlocks::num_free(bool beside_promises) const {
  if (!beside_promises && promises_.empty()) return cache_.num_unreferenced();
  return cache_.config().num_blocks - cache_.num_claimed() - promises_.num_blocks();
}

std::optional<Promise> KvBlocks::promise(const Request& request, const KvSequence& kv) {
  if (!needs_promise(request)) return std::nullopt;
  const int most = request.max_blocks(cache_.geometry(), cache_.length(kv));
  return std::optional<Promise>(std::in_place, promises_, most - cache_.num_held_blocks(kv));
}

bool KvBlocks::grow(Running& running, const KvSequence& kv, int num_tokens, std::vector<CopyOrder>& copies) {
  Promise* promise = running.promise();
  if (promise == nullptr) {
    const int num_missing = cache_.num_missing(kv, num_tokens);
    if (num_missing > 0 && num_missing > num_free(false)) return false;
  }
  const int num_claimed = cache_.num_claimed();
  if (!cache_.reserve(kv, num_tokens, copies)) return false;
  if (promise != nullptr) promise->take(cache_.num_claimed() - num_claimed);
  return true;
}

void KvBlocks::shrink(Running& running, const KvSequence& kv, std::uint64_t last_step) {
  const int num_claimed = cache_.num_claimed();
  cache_.leave_behind(kv, last_step);
  if (Promise* promise = running.promise()) promise->take(cache_.num_claimed() - num_claimed);
}

void KvBlocks::settle(RequestState& state, int num_wrong, std::uint64_t last_step) {
  if (auto* running = std::get_if<Running>(&state)) {
    cache_.settle(running->kv(), num_wrong);
    leave_behind(*running, running->kv(), last_step);
  }
  if (auto* swapped = std::get_if<Swapped>(&state)) cache_.settle(swapped->kv(), num_wrong);
}

void KvBlocks::move_beams(Running& running, std::span<const BeamMove> moves) {
  const int num_claimed = cache_.num_claimed();
  running.beams()->move(moves, running.kv(), cache_);
  running.promise()->take(cache_.num_claimed() - num_claimed);
}

}  // namespace tl
