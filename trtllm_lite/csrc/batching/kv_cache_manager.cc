#include "batching/kv_cache_manager.h"

#include <algorithm>
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

}  // namespace

KvCacheManager::KvCacheManager(const KvManagerConfig& config)
    : config_(checked(config)),
      device_(config.num_blocks),
      host_(config.num_host_blocks),
      prefixes_(config.num_blocks, config.tokens_per_block, config.hash_seed) {}

PrefixHit KvCacheManager::find_prefix(const TokenChain& chain, int max_tokens) {
  PrefixHit hit;
  hit_.clear();
  if (!config_.enable_block_reuse || chain.tokens.empty()) return hit;
  prefixes_.extend_hashes(chain);
  const int limit = std::min(static_cast<int>(chain.tokens.size()) - 1, max_tokens) / config_.tokens_per_block;
  PrefixCache::EntryId parent = PrefixCache::kRoot;
  for (int i = 0; i < limit; ++i) {
    const std::int32_t block = prefixes_.find(chain, i, parent);
    if (block == kNoBlock) break;
    if (prefixes_.written_by(block) > launched_) {
      hit.being_written = true;
      break;
    }
    hit.num_unreferenced += device_.refcount(block) == 0;
    parent = prefixes_.id(block);
    hit_.push_back(block);
  }
  hit.blocks = hit_;
  return hit;
}

KvSequence KvCacheManager::open(const TokenChain& chain, const PrefixHit& hit, int max_tokens) {
  const std::uint32_t id = new_sequence(false);
  Sequence& sequence = sequences_[id];
  sequence.blocks.reserve(num_blocks_for(max_tokens));  // decoding allocates nothing
  share_prefix(sequence, hit);
  sequence.length = sequence.writable = static_cast<int>(hit.blocks.size()) * config_.tokens_per_block;
  counters_.lookup_tokens += static_cast<std::int64_t>(chain.tokens.size());
  counters_.hit_tokens += sequence.length;
  return KvSequence(this, id);
}

KvSequence KvCacheManager::fork(const KvSequence& parent) {
  const std::uint32_t id = new_sequence(false);
  Sequence& from = sequences_[parent.id_];
  Sequence& to = sequences_[id];
  const int num_shared = num_blocks_for(from.length);
  to.blocks.assign(from.blocks.begin(), from.blocks.begin() + num_shared);
  for (const std::int32_t block : to.blocks) device_.retain(block);
  to.length = to.writable = from.length;
  to.num_committed = from.num_committed;
  to.parent = from.parent;
  if (from.length % config_.tokens_per_block != 0) from.writable = from.length;
  return KvSequence(this, id);
}

bool KvCacheManager::grow(Sequence& sequence, int num_tokens, std::vector<CopyOrder>& copies) {
  const int size = static_cast<int>(sequence.blocks.size());
  // Only the block that holds position `length` can be both shared and in need of a write: full ones are never
  // written again, and a fork takes no block behind it.
  const int tail = sequence.length / config_.tokens_per_block;
  const bool copy_tail = tail < size && device_.refcount(sequence.blocks[tail]) > 1;
  const int num_new = std::max(num_blocks_for(num_tokens) - size, 0);
  if (num_new + copy_tail > device_.num_ready()) return false;
  if (copy_tail) {
    const std::int32_t shared = sequence.blocks[tail];
    const std::int32_t own = take_block();
    copies.push_back({CopyKind::kDeviceToDevice, shared, own});
    device_.release(shared, launched_ + 1);  // the copy reads it
    sequence.blocks[tail] = own;
    sequence.first_change = std::min(sequence.first_change, tail);
  }
  for (int i = 0; i < num_new; ++i) sequence.blocks.push_back(take_block());
  sequence.writable = static_cast<int>(sequence.blocks.size()) * config_.tokens_per_block;
  return true;
}

void KvCacheManager::commit_blocks(Sequence& s, const TokenChain& chain, int num_known, std::uint64_t written_by) {
  prefixes_.extend_hashes(chain);
  for (; (s.num_committed + 1) * config_.tokens_per_block <= num_known; ++s.num_committed) {
    const std::int32_t own = s.blocks[s.num_committed];
    const std::int32_t same = prefixes_.find(chain, s.num_committed, s.parent);
    if (same != kNoBlock) {  // computed twice: later blocks hang on the first one, this copy stays private
      s.parent = prefixes_.id(same);
    } else {
      s.parent = prefixes_.insert(own, chain, s.num_committed, s.parent, written_by);
      device_.set_cached(own, true);
    }
  }
}

void KvCacheManager::forget(const TokenChain& chain) {
  prefixes_.extend_hashes(chain);
  PrefixCache::EntryId parent = PrefixCache::kRoot;
  for (int i = 0; i < std::ssize(chain.hashes); ++i) {
    const std::int32_t block = prefixes_.find(chain, i, parent);
    if (block == kNoBlock) return;
    parent = prefixes_.id(block);
    drop_entry(block);
  }
}

void KvCacheManager::forget_written_since(std::uint64_t step) {
  for (std::int32_t block = 0; block < config_.num_blocks; ++block) {
    if (prefixes_.contains(block) && prefixes_.written_by(block) >= step) drop_entry(block);
  }
}

std::optional<HostSequence> KvCacheManager::swap_out(KvSequence& handle, std::vector<CopyOrder>& copies) {
  const int num_used = num_blocks_for(sequences_[handle.id_].length);
  if (num_used > host_.num_ready()) return std::nullopt;
  const std::uint32_t id = new_sequence(true);
  const Sequence& from = sequences_[handle.id_];
  Sequence& to = sequences_[id];
  for (int i = 0; i < num_used; ++i) {
    to.blocks.push_back(host_.allocate());
    copies.push_back({CopyKind::kDeviceToHost, from.blocks[i], to.blocks.back()});
  }
  to.length = from.length;
  close(handle.id_, launched_ + 1);  // the copies read its blocks
  handle.manager_ = nullptr;
  return HostSequence(this, id);
}

std::optional<KvSequence> KvCacheManager::swap_in(HostSequence& handle, const PrefixHit& hit,
                                                  std::vector<CopyOrder>& copies) {
  const int length = sequences_[handle.id_].length;
  const int num_hit = static_cast<int>(hit.blocks.size());
  const int num_used = num_blocks_for(length);
  if (num_used - num_hit + hit.num_unreferenced > device_.num_ready()) return std::nullopt;
  const std::uint32_t id = new_sequence(false);
  const Sequence& from = sequences_[handle.id_];
  Sequence& to = sequences_[id];
  share_prefix(to, hit);
  for (int i = num_hit; i < num_used; ++i) {
    to.blocks.push_back(take_block());
    copies.push_back({CopyKind::kHostToDevice, from.blocks[i], to.blocks.back()});
  }
  to.length = length;
  to.writable = num_used * config_.tokens_per_block;
  close(handle.id_, launched_ + 1);
  handle.manager_ = nullptr;
  return KvSequence(this, id);
}

int KvCacheManager::num_exclusive_blocks(const KvSequence& handle) const {
  const auto& blocks = sequences_[handle.id_].blocks;
  return static_cast<int>(std::ranges::count_if(blocks, [&](std::int32_t b) { return device_.refcount(b) == 1; }));
}

void KvCacheManager::step_ended(std::uint64_t step) {
  device_.step_ended(step);
  host_.step_ended(step);
}

std::uint32_t KvCacheManager::new_sequence(bool on_host) {
  std::uint32_t id = static_cast<std::uint32_t>(sequences_.size());
  if (unused_sequences_.empty()) {
    sequences_.emplace_back();
    unused_sequences_.reserve(sequences_.capacity());  // close() must not allocate: destructors call it
  } else {
    id = unused_sequences_.back();
    unused_sequences_.pop_back();
  }
  sequences_[id].on_host = on_host;
  sequences_[id].in_use = true;
  return id;
}

void KvCacheManager::share_prefix(Sequence& sequence, const PrefixHit& hit) {
  sequence.blocks.assign(hit.blocks.begin(), hit.blocks.end());
  for (const std::int32_t block : hit.blocks) device_.retain(block);
  sequence.num_committed = static_cast<int>(hit.blocks.size());
  if (!hit.blocks.empty()) sequence.parent = prefixes_.id(hit.blocks.back());
}

std::int32_t KvCacheManager::take_block() {
  const std::int32_t block = device_.allocate();
  if (block == kNoBlock) throw std::logic_error("KV cache: a block was promised and is not ready");
  if (prefixes_.contains(block)) {
    drop_entry(block);
    ++counters_.evicted_blocks;
  }
  return block;
}

void KvCacheManager::drop_entry(std::int32_t block) {
  prefixes_.erase(block);
  device_.set_cached(block, false);
}

void KvCacheManager::close(std::uint32_t id, std::uint64_t last_step) {
  Sequence& s = sequences_[id];
  BlockPool& pool = s.on_host ? host_ : device_;
  // Last block first: the evictable list is in order of release, so leaves are evicted before what they hang on.
  for (const std::int32_t block : std::views::reverse(s.blocks)) pool.release(block, last_step);
  s.blocks.clear();  // keeps its storage
  s.length = s.writable = s.first_change = s.num_committed = 0;
  s.parent = PrefixCache::kRoot;
  s.in_use = false;
  unused_sequences_.push_back(id);
}

}  // namespace tl
