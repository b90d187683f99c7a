// The part of KvCacheManager that shares common prefixes.
#include <algorithm>

#include "caches/kv_cache_manager.h"

namespace tl {

// Group 0 determines how much of the chain is cached. Other groups must have the blocks within their windows, or the
// state at the end of the prefix (a sequence that continues at `length` brings its own).
PrefixHit KvCacheManager::find_prefix(const TokenChain& chain, int max_tokens, int length) {
  PrefixHit hit;
  std::ranges::fill(reach_, 0);
  hit.reach = reach_;
  for (auto& blocks : hit_) blocks.clear();
  if (!shares_prefixes() || chain.tokens.empty()) return hit;
  prefixes_.extend_hashes(chain);
  const int tokens_per_block = config_.tokens_per_block;
  const int limit = std::min(static_cast<int>(chain.tokens.size()) - 1, max_tokens) / tokens_per_block;
  const auto first_needed = [&](std::size_t group, int num_blocks) {
    const CacheKind& kind = geometry_.kind(static_cast<int>(group));
    if (kind.sums_up()) return length > 0 ? num_blocks : std::max(num_blocks - 1, 0);
    return kind.first_needed(std::max(num_blocks * tokens_per_block, length));
  };
  std::ranges::fill(complete_from_, 0);  // for each group, the index from which on no block is missing
  PrefixCache::EntryId parent = PrefixCache::kRoot;
  bool is_written = true;
  for (int i = 0; i < limit; ++i) {
    const std::int32_t block = prefixes_.find(chain, i, parent);
    if (block == kNoBlock) break;
    parent = prefixes_.id(block);
    hit_[0].push_back(block);
    bool is_unwritten = prefixes_.written_by(block) > launched_, is_unwritten_state = false;
    for (std::size_t group = 1; group < hit_.size(); ++group) {
      const std::int32_t companion = prefixes_.find_companion(parent, static_cast<int>(group));
      hit_[group].push_back(companion);
      if (companion == kNoBlock) {
        complete_from_[group] = i + 1;
      } else {
        const bool is_new = prefixes_.written_by(companion) > launched_;
        is_unwritten |= is_new;
        is_unwritten_state |= is_new && geometry_.kind(static_cast<int>(group)).sums_up();
      }
    }
    // A state is kept at the end of a prompt, so that one of equal blocks is worth waiting for.
    is_written = is_written && !is_unwritten;
    hit.being_written = !is_written && (!geometry_.has_states() || is_unwritten_state || i + 1 == limit);
    if (hit.being_written) break;
    bool complete = is_written;
    for (std::size_t group = 0; group < hit_.size(); ++group) {
      const bool reaches = complete_from_[group] <= std::min(first_needed(group, i + 1), i + 1);
      if (reaches) reach_[group] = i + 1;
      complete = complete && reaches;
    }
    if (!complete) continue;
    hit.num_blocks = i + 1;
    hit.last_entry = parent;
  }
  for (std::size_t group = 0; group < hit_.size(); ++group) {
    auto& blocks = hit_[group];
    blocks.resize(static_cast<std::size_t>(hit.num_blocks));
    blocks.erase(blocks.begin(), blocks.begin() + std::min(first_needed(group, hit.num_blocks), hit.num_blocks));
    if (geometry_.kind(static_cast<int>(group)).sums_up()) continue;
    hit.num_held += static_cast<int>(blocks.size());
    for (const std::int32_t block : blocks) {
      hit.num_on_host += is_on_host(block);
      const bool is_held = !is_on_host(block) && device_.refcount(block) > 0;
      hit.num_unreferenced += !is_held;
      hit.num_shared += is_held && geometry_.kind(static_cast<int>(group)).gives_back();
    }
  }
  hit.tables = hit_;
  return hit;
}

// Adds references to the blocks of a prefix, so that they stay while others are taken.
void KvCacheManager::hold_prefix(std::uint32_t id, const PrefixHit& hit) {
  if (hit.num_blocks == 0) return;
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    for (const std::int32_t block : hit.tables[static_cast<std::size_t>(group)]) {
      if (is_on_host(block)) {
        retain_host(host_block(block), group);
      } else {
        retain(block, group);
      }
    }
  }
  sequences_[id].num_committed = hit.num_blocks;
  sequences_[id].parent = hit.last_entry;
}

// Enters the blocks of a prefix, which are held, into a sequence's table.
void KvCacheManager::share_prefix(std::uint32_t id, int group, const PrefixHit& hit, std::vector<CopyOrder>& copies) {
  const auto& shared = hit.tables[static_cast<std::size_t>(group)];
  Table& t = table(id, group);
  t.first = hit.num_blocks - static_cast<int>(shared.size());
  t.blocks.assign(static_cast<std::size_t>(t.first), kNoBlock);
  for (const std::int32_t block : shared) {
    t.blocks.push_back(is_on_host(block) ? bring_back(block, group, copies) : block);
  }
}

// Gives a new sequence, which needs `num_needed` blocks for its known tokens, the state that it begins with, of a kept
// one that is held.
void KvCacheManager::begin_state(std::uint32_t id, int group, std::int32_t kept, int num_needed,
                                 std::vector<CopyOrder>& copies) {
  std::int32_t own = kept;
  if (is_on_host(kept)) {
    own = take_entry(group, copies);
    copy_entry(CopyKind::kHostToDevice, host_block(kept), own, group, copies);
    release_host(host_block(kept), group, launched_ + 1);  // where it stays for others
  } else if (can_copy_state(group, num_needed)) {
    own = take_entry(group, copies);
    copy_entry(CopyKind::kDeviceToDevice, kept, own, group, copies);
    release(kept, group, launched_ + 1);  // the copy still reads it
  } else {
    drop_entry(kept);
  }
  table(id, group).blocks.push_back(own);
}

// Whether a new sequence finds all blocks that it needs beside a kept state, which it holds already.
bool KvCacheManager::can_copy_state(int group, int num_needed) const {
  const bool has_other = geometry_.blocks(group) == 1 || device_.num_ready_runs() > 0;
  return has_other && device_.num_ready() >= num_needed;
}

bool KvCacheManager::has_run_beside(const PrefixHit& hit) const {
  std::vector<std::int32_t> broken;
  for (int group = 0; group < static_cast<int>(hit.tables.size()); ++group) {
    const auto& blocks = hit.tables[static_cast<std::size_t>(group)];
    if (geometry_.kind(group).sums_up()) {
      if (!blocks.empty() && !is_on_host(blocks.front()) && device_.ready_run_of(blocks.front()) != kNoBlock) {
        return true;
      }
      continue;
    }
    for (const std::int32_t block : blocks) {
      if (is_on_host(block)) continue;
      if (const std::int32_t run = device_.ready_run_of(block); run != kNoBlock) broken.push_back(run);
    }
  }
  std::ranges::sort(broken);
  const auto num_broken = std::ranges::unique(broken).begin() - broken.begin();
  return geometry_.run() == 1 || device_.num_ready_runs() > num_broken;
}

bool KvCacheManager::can_keep_state(const KvSequence& handle) const {
  const Sequence& s = sequences_[handle.id_];
  const bool ends_block = s.num_committed > 0 && s.length == s.num_committed * config_.tokens_per_block;
  const bool has_room = has_runs() && device_.num_ready() >= geometry_.run();
  if (!ends_block || s.num_unsettled > 0 || !shares_prefixes() || !has_room) return false;
  for (int group = 1; group < geometry_.num_groups(); ++group) {
    if (geometry_.kind(group).sums_up() && prefixes_.find_companion(s.parent, group) == kNoBlock) return true;
  }
  return false;
}

void KvCacheManager::keep_state(const KvSequence& handle, std::vector<CopyOrder>& copies) {
  for (int group = 1; group < geometry_.num_groups(); ++group) {
    const PrefixCache::EntryId parent = sequences_[handle.id_].parent;
    if (!geometry_.kind(group).sums_up() || prefixes_.find_companion(parent, group) != kNoBlock) continue;
    const std::int32_t kept = take_entry(group, copies);
    copy_entry(CopyKind::kDeviceToDevice, table(handle.id_, group).blocks.front(), kept, group, copies);
    enter_companion(kept, parent, group, launched_ + 1);
    release(kept, group, launched_ + 1);
  }
}

void KvCacheManager::commit_blocks(std::uint32_t id, const TokenChain& chain, int num_known, std::uint64_t written_by) {
  prefixes_.extend_hashes(chain);
  Sequence& s = sequences_[id];
  while ((s.num_committed + 1) * config_.tokens_per_block <= num_known &&
         commit_block(id, chain, s.num_committed, written_by)) {
    ++s.num_committed;
  }
}

// Returns false if the sequence has already released the block of group 0, or its memory is on its way to another use,
// and no other sequence has computed it: later blocks then have no parent entry. A block that sequences share may have
// an entry already that nobody finds any more, because the entry before it, or whose companion it is, was dropped.
bool KvCacheManager::commit_block(std::uint32_t id, const TokenChain& chain, int index, std::uint64_t written_by) {
  Sequence& s = sequences_[id];
  const auto at = static_cast<std::size_t>(index);
  // If another sequence has computed the same block, later blocks get its entry as parent; this copy stays private.
  const std::int32_t same = prefixes_.find(chain, index, s.parent);
  if (same != kNoBlock) {
    s.parent = prefixes_.id(same);
  } else {
    const std::int32_t own = table(id, 0).blocks[at];
    if (own == kNoBlock || lent_.is_leaving(own)) return false;
    if (prefixes_.contains(own)) drop_entry(own);
    s.parent = prefixes_.insert(own, chain, index, s.parent, written_by);
    device_.set_cached(own, true);
  }
  for (int group = 1; group < geometry_.num_groups(); ++group) {
    if (geometry_.kind(group).sums_up()) continue;
    const std::int32_t own = table(id, group).blocks[at];
    if (own == kNoBlock || lent_.is_leaving(own) || prefixes_.find_companion(s.parent, group) != kNoBlock) continue;
    if (prefixes_.contains(own)) drop_entry(own);
    enter_companion(own, s.parent, group, written_by);
  }
  return true;
}

void KvCacheManager::forget(const TokenChain& chain) {
  prefixes_.extend_hashes(chain);
  PrefixCache::EntryId parent = PrefixCache::kRoot;
  for (int i = 0; i < std::ssize(chain.hashes); ++i) {
    const std::int32_t block = prefixes_.find(chain, i, parent);
    if (block == kNoBlock) return;
    parent = prefixes_.id(block);
    drop_entry(block);
    for (int group = 1; group < geometry_.num_groups(); ++group) {
      const std::int32_t companion = prefixes_.find_companion(parent, group);
      if (companion != kNoBlock) drop_entry(companion);
    }
  }
}

void KvCacheManager::forget_written_since(std::uint64_t step) {
  for (std::int32_t block = 0; block < config_.num_blocks + config_.num_host_blocks; ++block) {
    if (prefixes_.contains(block) && prefixes_.written_by(block) >= step) drop_entry(block);
  }
}

}  // namespace tl
