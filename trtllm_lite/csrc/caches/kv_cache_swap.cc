// The part of KvCacheManager that swaps sequences to the host and back.
#include <algorithm>

#include "caches/kv_cache_manager.h"

namespace tl {

std::optional<HostSequence> KvCacheManager::swap_out(KvSequence& handle, std::vector<CopyOrder>& copies) {
  if (num_used_blocks(handle) > host_.num_ready() || !has_host_runs()) return std::nullopt;
  const std::uint32_t id = new_sequence(true);
  const int length = sequences_[handle.id_].length;
  for (const int group : longest_runs_first_) {
    const Table& from = table(handle.id_, group);
    Table& to = table(id, group);
    to.first = from.first;
    to.blocks.assign(static_cast<std::size_t>(from.first), kNoBlock);
    for (int i = from.first; i < geometry_.kind(group).num_entries(length); ++i) {
      to.blocks.push_back(take_host_entry(group));
      copy_entry(CopyKind::kDeviceToHost, from.blocks[static_cast<std::size_t>(i)], to.blocks.back(), group, copies);
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
  const int num_missing = num_used_blocks(handle) - hit.num_held + hit.num_unreferenced;
  if (num_missing > device_.num_ready() || !has_run_beside(hit)) return std::nullopt;
  const std::uint32_t id = new_sequence(false);
  share_prefix(id, hit);
  int num_writable = std::numeric_limits<int>::max();
  for (const int group : longest_runs_first_) {
    const Table& from = table(handle.id_, group);
    Table& to = table(id, group);
    if (to.first == std::ssize(to.blocks)) to.blocks.resize(static_cast<std::size_t>(to.first = from.first), kNoBlock);
    for (int i = static_cast<int>(to.blocks.size()); i < geometry_.kind(group).num_entries(length); ++i) {
      to.blocks.push_back(take_entry(group));
      copy_entry(CopyKind::kHostToDevice, from.blocks[static_cast<std::size_t>(i)], to.blocks.back(), group, copies);
    }
    num_writable = std::min(num_writable, geometry_.kind(group).num_writable(static_cast<int>(to.blocks.size())));
  }
  sequences_[id].length = length;
  sequences_[id].writable = num_writable;
  close(handle.id_, launched_ + 1);
  handle.manager_ = nullptr;
  return KvSequence(this, id);
}

}  // namespace tl
