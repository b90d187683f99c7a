// The part of KvCacheManager that swaps sequences to the host and back.
#include <algorithm>

#include "caches/kv_cache_manager.h"

namespace tl {

std::optional<HostSequence> KvCacheManager::swap_out(KvSequence& handle, std::vector<CopyOrder>& copies) {
  if (num_used_blocks(handle) > host_.num_ready()) return std::nullopt;
  const std::uint32_t id = new_sequence(true);
  const int length = sequences_[handle.id_].length;
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    const Table& from = table(handle.id_, group);
    Table& to = table(id, group);
    to.first = from.first;
    to.blocks.assign(static_cast<std::size_t>(from.first), kNoBlock);
    for (int i = from.first; i < geometry_.num_blocks_for(length); ++i) {
      to.blocks.push_back(host_.allocate());
      copies.push_back({CopyKind::kDeviceToHost, from.blocks[static_cast<std::size_t>(i)], to.blocks.back()});
    }
  }
  sequences_[id].length = length;
  sequences_[id].num_unsettled = sequences_[handle.id_].num_unsettled;
  close(handle.id_, launched_ + 1);  // the copies read its blocks
  handle.manager_ = nullptr;
  return HostSequence(this, id);
}

std::optional<KvSequence> KvCacheManager::swap_in(HostSequence& handle, const PrefixHit& hit,
                                                  std::vector<CopyOrder>& copies) {
  const int length = sequences_[handle.id_].length;
  const int num_used = geometry_.num_blocks_for(length);
  if (num_used_blocks(handle) - hit.num_held + hit.num_unreferenced > device_.num_ready()) return std::nullopt;
  const std::uint32_t id = new_sequence(false);
  share_prefix(id, hit);
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    const Table& from = table(handle.id_, group);
    Table& to = table(id, group);
    if (to.first == std::ssize(to.blocks)) to.blocks.resize(static_cast<std::size_t>(to.first = from.first), kNoBlock);
    for (int i = static_cast<int>(to.blocks.size()); i < num_used; ++i) {
      to.blocks.push_back(take_block());
      copies.push_back({CopyKind::kHostToDevice, from.blocks[static_cast<std::size_t>(i)], to.blocks.back()});
    }
  }
  sequences_[id].length = length;
  sequences_[id].writable = num_used * config_.tokens_per_block;
  close(handle.id_, launched_ + 1);
  handle.manager_ = nullptr;
  return KvSequence(this, id);
}

}  // namespace tl
