// The part of KvCacheManager that moves sequences and cached prefixes to the host and back.
#include <algorithm>

#include "caches/kv_cache_manager.h"

namespace tl {

// Takes blocks of the host, and returns the first; kNoBlock if they are not ready. What is cached in them is lost.
std::int32_t KvCacheManager::take_host_entry(int group) {
  const int num_blocks = geometry_.blocks(group);
  const std::int32_t first = num_blocks > 1 ? host_.allocate_run() : host_.allocate();
  if (first == kNoBlock) return kNoBlock;
  for (std::int32_t block = first; block < first + num_blocks; ++block) {
    if (host_.is_cached(block)) lose_entry(entry_of(config_.num_blocks + block));
  }
  return first;
}

void KvCacheManager::retain_host(std::int32_t first, int group) {
  for (int i = 0; i < geometry_.blocks(group); ++i) host_.retain(first + i);
}

void KvCacheManager::release_host(std::int32_t first, int group, std::uint64_t last_step) {
  for (int i = 0; i < geometry_.blocks(group); ++i) host_.release(first + i, last_step);
}

// Moves what the blocks of an entry hold to the host, for later sequences. Returns false and changes nothing if the
// host has no room. Blocks of a run of which only some were taken are free then, and this step may take them, too.
bool KvCacheManager::move_to_host(std::int32_t block, std::vector<CopyOrder>& copies) {
  const int group = prefixes_.group(block);
  const std::int32_t on_host = take_host_entry(group);
  if (on_host == kNoBlock) return false;
  copy_entry(CopyKind::kDeviceToHost, block, on_host, group, copies);
  prefixes_.move(block, config_.num_blocks + on_host, launched_ + 1);
  for (int i = 0; i < geometry_.blocks(group); ++i) {
    set_cached(block + i, false);
    set_cached(config_.num_blocks + on_host + i, true);
    left_.push_back(block + i);
  }
  release_host(on_host, group, launched_ + 1);
  return true;
}

// Copies what a block of the host holds to one of the device, and returns that. The entry moves there, unless the
// memory is on its way to another use.
std::int32_t KvCacheManager::bring_back(std::int32_t block, int group, std::vector<CopyOrder>& copies) {
  const std::int32_t own = take_entry(group, copies);
  copy_entry(CopyKind::kHostToDevice, host_block(block), own, group, copies);
  if (!lent_.is_leaving(own)) {
    prefixes_.move(block, own, launched_ + 1);
    set_cached(block, false);
    set_cached(own, true);
  }
  release_host(host_block(block), group, launched_ + 1);
  return own;
}

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
  hold_prefix(id, hit);
  int num_writable = std::numeric_limits<int>::max();
  for (const int group : longest_runs_first_) {
    const Table& from = table(handle.id_, group);
    Table& to = table(id, group);
    if (!geometry_.kind(group).sums_up() && hit.num_blocks > 0) share_prefix(id, group, hit, copies);
    if (to.first == std::ssize(to.blocks)) to.blocks.resize(static_cast<std::size_t>(to.first = from.first), kNoBlock);
    for (int i = static_cast<int>(to.blocks.size()); i < geometry_.kind(group).num_entries(length); ++i) {
      to.blocks.push_back(take_entry(group, copies));
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
