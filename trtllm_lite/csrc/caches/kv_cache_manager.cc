#include "caches/kv_cache_manager.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <ranges>
#include <stdexcept>
#include <string>

namespace tl {
namespace {

KvManagerConfig checked(const KvManagerConfig& config) {
  if (config.num_blocks < 1 || config.num_host_blocks < 0 || config.tokens_per_block < 1) {
    throw std::invalid_argument(
        "KV cache: expected num_blocks >= 1, num_host_blocks >= 0 and tokens_per_block >= 1, found " +
        std::to_string(config.num_blocks) + ", " + std::to_string(config.num_host_blocks) + " and " +
        std::to_string(config.tokens_per_block));
  }
  return config;
}

std::vector<int> longest_runs_first(const KvGeometry& geometry) {
  std::vector<int> groups(static_cast<std::size_t>(geometry.num_groups()));
  std::iota(groups.begin(), groups.end(), 0);
  std::ranges::stable_sort(groups, std::greater(), [&](int group) { return geometry.blocks(group); });
  return groups;
}

}  // namespace

KvCacheManager::KvCacheManager(const KvManagerConfig& config)
    : config_(checked(config)),
      geometry_(config.geometry()),
      longest_runs_first_(longest_runs_first(geometry_)),
      device_(config.num_blocks, geometry_.run()),
      host_(config.num_host_blocks, geometry_.run()),
      lent_(config.slabs, config.num_blocks),
      prefixes_(config.num_blocks + config.num_host_blocks, config.tokens_per_block, config.hash_seed),
      hit_(config.groups.size()),
      complete_from_(config.groups.size()),
      reach_(config.groups.size()) {
  counters_.reached_tokens.resize(config.groups.size());
  counters_.host_tokens.resize(config.groups.size());
}

KvSequence KvCacheManager::open(const TokenChain& chain, const PrefixHit& hit, int max_tokens,
                                std::vector<CopyOrder>& copies) {
  const std::uint32_t id = new_sequence(false);
  // so that decoding allocates nothing
  for (Table& t : tables(id)) t.blocks.reserve(geometry_.num_blocks_for(max_tokens));
  count_hit(chain, hit);
  hold_prefix(id, hit);
  Sequence& sequence = sequences_[id];
  sequence.length = sequence.writable = hit.num_blocks * config_.tokens_per_block;
  const int num_known = std::max(sequence.length, static_cast<int>(chain.tokens.size()));
  const int num_needed = geometry_.num_needed(sequence.length, num_known) - hit.num_held + hit.num_on_host;
  for (const int group : longest_runs_first_) {
    if (hit.num_blocks == 0) break;
    if (geometry_.kind(group).sums_up()) {
      begin_state(id, group, hit.tables[static_cast<std::size_t>(group)].front(), num_needed, copies);
    } else {
      share_prefix(id, group, hit, copies);
    }
  }
  return KvSequence(this, id);
}

void KvCacheManager::count_hit(const TokenChain& chain, const PrefixHit& hit) {
  const std::int64_t tokens_per_block = config_.tokens_per_block;
  counters_.lookup_tokens += static_cast<std::int64_t>(chain.tokens.size());
  counters_.hit_tokens += hit.num_blocks * tokens_per_block;
  for (std::size_t group = 0; group < hit.reach.size(); ++group) {
    counters_.reached_tokens[group] += hit.reach[group] * tokens_per_block;
  }
  for (std::size_t group = 0; group < hit.tables.size(); ++group) {
    // A state stands for all tokens of the prefix.
    const int num_each = geometry_.kind(static_cast<int>(group)).sums_up() ? hit.num_blocks : 1;
    const auto on_host = [this](std::int32_t block) { return is_on_host(block); };
    counters_.host_tokens[group] += std::ranges::count_if(hit.tables[group], on_host) * num_each * tokens_per_block;
  }
}

KvSequence KvCacheManager::fork(const KvSequence& parent) {
  if (!geometry_.can_fork()) throw std::logic_error("KV cache: a sequence with a state cannot be forked");
  const std::uint32_t id = new_sequence(false);
  Sequence& from = sequences_[parent.id_];
  Sequence& to = sequences_[id];
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    const Table& source = table(parent.id_, group);
    Table& target = table(id, group);
    const int num_shared = geometry_.kind(group).num_entries(from.length);
    target.blocks.assign(source.blocks.begin(), source.blocks.begin() + num_shared);
    target.first = source.first;
    for (const std::int32_t block : target.held()) retain(block, group);
  }
  to.length = to.writable = from.length;
  to.num_committed = from.num_committed;
  to.parent = from.parent;
  if (from.length % config_.tokens_per_block != 0) from.writable = from.length;
  return KvSequence(this, id);
}

// Only the entry that the token at position `length` writes can be both shared and about to be written: full blocks are
// never written again, and a fork takes no later block.
bool KvCacheManager::shares_tail(std::uint32_t id, int group) const {
  const auto& blocks = table(id, group).blocks;
  const int tail = geometry_.kind(group).entry(sequences_[id].length);
  return tail < std::ssize(blocks) && device_.refcount(blocks[static_cast<std::size_t>(tail)]) > 1;
}

int KvCacheManager::num_new_entries(std::uint32_t id, int group, int num_tokens) const {
  const int size = static_cast<int>(table(id, group).blocks.size());
  return std::max(geometry_.kind(group).table_end(sequences_[id].length, num_tokens) - size, 0);
}

int KvCacheManager::num_missing(const KvSequence& handle, int num_tokens) const {
  int num_blocks = 0;
  if (is_writable(handle, num_tokens)) return num_blocks;
  for (int group = 0; group < geometry_.num_groups(); ++group)
    num_blocks += geometry_.blocks(group) * num_new_entries(handle.id_, group, num_tokens);
  return num_blocks;
}

bool KvCacheManager::grow(std::uint32_t id, int num_tokens, std::vector<CopyOrder>& copies) {
  Sequence& sequence = sequences_[id];
  int num_taken = 0;
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    const int num_entries = num_new_entries(id, group, num_tokens) + shares_tail(id, group);
    num_taken += geometry_.blocks(group) * num_entries;
    if (num_entries > 0 && geometry_.blocks(group) > 1 && !has_runs()) return false;
  }
  if (num_taken > device_.num_ready()) return false;
  int num_writable = std::numeric_limits<int>::max();
  for (const int group : longest_runs_first_) {
    Table& t = table(id, group);
    const int num_new = num_new_entries(id, group, num_tokens), tail = geometry_.kind(group).entry(sequence.length);
    if (shares_tail(id, group)) {
      const std::int32_t shared = t.blocks[static_cast<std::size_t>(tail)];
      const std::int32_t own = take_entry(group, copies);
      copy_entry(CopyKind::kDeviceToDevice, shared, own, group, copies);
      release(shared, group, launched_ + 1);  // the copy still reads it
      t.blocks[static_cast<std::size_t>(tail)] = own;
      t.first_change = std::min(t.first_change, tail);
    }
    for (int i = 0; i < num_new; ++i) t.blocks.push_back(take_entry(group, copies));
    num_writable = std::min(num_writable, geometry_.kind(group).num_writable(static_cast<int>(t.blocks.size())));
  }
  sequence.writable = num_writable;
  sequence.changed = true;
  return true;
}

void KvCacheManager::copy_entry(CopyKind kind, std::int32_t from, std::int32_t to, int group,
                                std::vector<CopyOrder>& copies) const {
  for (int i = 0; i < geometry_.blocks(group); ++i) copies.push_back({kind, from + i, to + i});
}

void KvCacheManager::drop_behind_windows(std::uint32_t id, std::uint64_t last_step) {
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    Table& t = table(id, group);
    const int first = geometry_.kind(group).first_needed(sequences_[id].length - sequences_[id].num_unsettled);
    for (; t.first < first; ++t.first) {
      release(std::exchange(t.blocks[static_cast<std::size_t>(t.first)], kNoBlock), group, last_step);
    }
  }
}

int KvCacheManager::num_held_blocks(const SequenceHandle& handle) const {
  int num_blocks = 0;
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    num_blocks += geometry_.blocks(group) * static_cast<int>(table(handle.id_, group).held().size());
  }
  return num_blocks;
}

int KvCacheManager::num_exclusive_blocks(const KvSequence& handle) const {
  std::ptrdiff_t num_blocks = 0;
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    const auto is_exclusive = [&](std::int32_t block) { return device_.refcount(block) == 1; };
    num_blocks += geometry_.blocks(group) * std::ranges::count_if(table(handle.id_, group).held(), is_exclusive);
  }
  return static_cast<int>(num_blocks);
}

int KvCacheManager::num_used_blocks(const SequenceHandle& handle) const {
  int num_blocks = 0;
  for (int group = 0; group < geometry_.num_groups(); ++group) {
    const int end = geometry_.kind(group).num_entries(sequences_[handle.id_].length);
    num_blocks += geometry_.blocks(group) * (end - table(handle.id_, group).first);
  }
  return num_blocks;
}

int KvCacheManager::num_shared_tokens(const KvSequence& handle) const {
  if (geometry_.has_states()) return 0;  // whether a state is left from which to go on is only known then
  const auto shared =
      std::ranges::count_if(table(handle.id_, 0).held(), [&](auto b) { return device_.refcount(b) > 1; });
  return static_cast<int>(shared) * config_.tokens_per_block;
}

void KvCacheManager::begin_lending(int slab) {
  for (auto [block, last] = lent_.blocks_of(slab); block <= last; ++block) {
    if (device_.is_cached(block)) lose_entry(entry_of(block));
  }
  lent_.begin(slab, device_);
}

void KvCacheManager::step_launched(std::uint64_t step) {
  launched_ = step;
  for (const std::int32_t block : left_) device_.hold_back(block, step);
  left_.clear();
}

void KvCacheManager::step_ended(std::uint64_t step) {
  device_.step_ended(step);
  host_.step_ended(step);
}

std::uint32_t KvCacheManager::new_sequence(bool on_host) {
  std::uint32_t id = static_cast<std::uint32_t>(sequences_.size());
  if (unused_sequences_.empty()) {
    sequences_.emplace_back();
    tables_.resize(sequences_.size() * static_cast<std::size_t>(geometry_.num_groups()));
    unused_sequences_.reserve(sequences_.capacity());  // close() must not allocate, because destructors call it
  } else {
    id = unused_sequences_.back();
    unused_sequences_.pop_back();
  }
  sequences_[id].on_host = on_host;
  sequences_[id].in_use = sequences_[id].changed = true;
  return id;
}

// Adds a reference to the blocks of a device entry that another sequence holds or that is cached.
void KvCacheManager::retain(std::int32_t first, int group) {
  for (std::int32_t block = first; block < first + geometry_.blocks(group); ++block) {
    num_extra_ += geometry_.kind(group).gives_back() && device_.refcount(block) > 0;
    device_.retain(block);
  }
}

void KvCacheManager::release(std::int32_t first, int group, std::uint64_t last_step) {
  for (std::int32_t block = first; block < first + geometry_.blocks(group); ++block) {
    num_extra_ -= geometry_.kind(group).gives_back() && device_.refcount(block) > 1;
    device_.release(block, last_step);
  }
}

// Takes the blocks of an entry, and returns the first. What is cached in them moves to the host, or is lost.
std::int32_t KvCacheManager::take_entry(int group, std::vector<CopyOrder>& copies) {
  const int num_blocks = geometry_.blocks(group);
  const std::int32_t first = num_blocks > 1 ? device_.allocate_run() : device_.allocate();
  if (first == kNoBlock) throw std::logic_error("KV cache: a block was promised and is not ready");
  for (std::int32_t block = first; block < first + num_blocks; ++block) {
    if (device_.is_cached(block) && !move_to_host(entry_of(block), copies)) lose_entry(entry_of(block));
  }
  return first;
}

void KvCacheManager::lose_entry(std::int32_t block) {
  counters_.evicted_blocks += geometry_.blocks(prefixes_.group(block));
  drop_entry(block);
}

void KvCacheManager::enter_companion(std::int32_t first, PrefixCache::EntryId entry, int group,
                                     std::uint64_t written_by) {
  prefixes_.insert_companion(first, entry, group, written_by);
  for (int i = 0; i < geometry_.blocks(group); ++i) set_cached(first + i, true);
}

void KvCacheManager::set_cached(std::int32_t block, bool cached) {
  if (is_on_host(block)) {
    host_.set_cached(host_block(block), cached);
  } else {
    device_.set_cached(block, cached);
  }
}

// The block that a cached block is found by: itself, or the first of its run.
std::int32_t KvCacheManager::entry_of(std::int32_t block) const {
  const std::int32_t begin = is_on_host(block) ? config_.num_blocks : 0;
  return prefixes_.contains(block) ? block : begin + (block - begin) / geometry_.run() * geometry_.run();
}

void KvCacheManager::drop_entry(std::int32_t first) {
  const int num_blocks = geometry_.blocks(prefixes_.group(first));
  prefixes_.erase(first);
  for (int i = 0; i < num_blocks; ++i) set_cached(first + i, false);
}

void KvCacheManager::close(std::uint32_t id, std::uint64_t last_step) {
  Sequence& s = sequences_[id];
  // Group 0 and every table's first block are released last: the evictable list is in order of release, so a block is
  // evicted only after the blocks that depend on it.
  for (int group = geometry_.num_groups() - 1; group >= 0; --group) {
    Table& t = table(id, group);
    for (const std::int32_t block : std::views::reverse(t.held())) {
      if (!s.on_host) {
        release(block, group, last_step);
        continue;
      }
      release_host(block, group, last_step);
    }
    t.blocks.clear();  // keeps its storage
    t.first = t.first_change = 0;
  }
  s.length = s.num_unsettled = s.writable = s.num_committed = 0;
  s.parent = PrefixCache::kRoot;
  s.in_use = false;
  unused_sequences_.push_back(id);
}

}  // namespace tl
