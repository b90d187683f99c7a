#include "schedule/beam_group.h"

#include <stdexcept>
#include <utility>

namespace tl {

BeamGroup::BeamGroup(std::int32_t own_slot, std::vector<Slot> others) : others_(std::move(others)), free_{own_slot} {
  for (const Slot& slot : others_) free_.push_back(slot.index());
}

void BeamGroup::move(std::span<const BeamMove> moves, const KvSequence& prompt, KvCacheManager& cache) {
  const std::size_t num_parents = beams_.empty() ? 1 : beams_.size();
  std::vector<int> num_children(num_parents, 0);
  for (const BeamMove& move : moves) {
    if (move.parent < 0 || std::cmp_greater_equal(move.parent, num_parents)) {
      throw std::logic_error("a beam continues a beam that does not exist");
    }
    ++num_children[static_cast<std::size_t>(move.parent)];
  }
  for (std::size_t i = 0; i < beams_.size(); ++i) {
    if (num_children[i] == 0) free_.push_back(beams_[i].slot);
  }
  std::vector<const KvSequence*> sources(num_parents, beams_.empty() ? &prompt : nullptr);
  std::vector<Beam> next;
  next.reserve(moves.size());  // `sources` point into `next`
  for (const BeamMove& move : moves) {
    const KvSequence*& source = sources[static_cast<std::size_t>(move.parent)];
    if (source == nullptr) {
      next.push_back(std::move(beams_[static_cast<std::size_t>(move.parent)]));
      next.back().token = move.token;
      source = &next.back().kv;
      continue;
    }
    if (free_.empty()) throw std::logic_error("a search has more beams than it asked for");
    next.push_back({free_.back(), cache.fork(*source), move.token});
    free_.pop_back();
  }
  beams_ = std::move(next);
  in_flight_ = false;
}

}  // namespace tl
