// The paged KV cache's bookkeeping: who holds which blocks, what can be shared, copied, evicted or swapped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "batching/block_pool.h"
#include "batching/kv_sequence.h"
#include "batching/prefix_cache.h"
#include "batching/step.h"

namespace tl {

struct KvManagerConfig {
  int num_blocks = 0;
  int num_host_blocks = 0;  // 0: preempted sequences are recomputed, never swapped
  int tokens_per_block = 32;
  bool enable_block_reuse = true;
  std::uint64_t hash_seed = 0;  // random in service, so that nobody can aim for collisions
};

// What the cache already holds of a sequence; valid until the next call that changes the manager.
struct PrefixHit {
  std::span<const std::int32_t> blocks;
  int num_unreferenced = 0;    // of blocks: held by nobody else, so opening a sequence on them uses up ready blocks
  bool being_written = false;  // the step in preparation writes the next block: from the step after it can be shared
};

struct KvCacheCounters {
  std::int64_t lookup_tokens = 0, hit_tokens = 0;  // of sequences opened
  std::int64_t evicted_blocks = 0;
};

// One thread. The manager must outlive its handles. "The step in preparation" is the one after the last launched.
class KvCacheManager {
 public:
  explicit KvCacheManager(const KvManagerConfig& config);
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;

  const KvManagerConfig& config() const { return config_; }
  int num_blocks_for(int num_tokens) const {
    return (num_tokens + config_.tokens_per_block - 1) / config_.tokens_per_block;
  }
  const BlockPool& device() const { return device_; }
  const BlockPool& host() const { return host_; }
  const KvCacheCounters& counters() const { return counters_; }
  const PrefixCache& prefixes() const { return prefixes_; }

  // The longest shareable prefix of full blocks within the first `max_tokens`. The last token of the chain is never
  // part of it: something must be computed.
  PrefixHit find_prefix(const TokenChain& chain, int max_tokens);
  // A sequence that begins with the blocks of `hit` (just found for `chain`, or empty). It will not exceed max_tokens.
  KvSequence open(const TokenChain& chain, const PrefixHit& hit, int max_tokens);
  // A second sequence with the same content; a block that both would write is copied by the first to reserve it.
  KvSequence fork(const KvSequence& sequence);

  // Makes positions length() .. num_tokens-1 writable. False, and nothing changed, if too few blocks are ready.
  bool reserve(const KvSequence& sequence, int num_tokens, std::vector<CopyOrder>& copies) {
    return num_tokens <= sequences_[sequence.id_].writable || grow(sequences_[sequence.id_], num_tokens, copies);
  }
  // The step in preparation writes num_tokens more, which were reserved.
  void advance(const KvSequence& sequence, int num_tokens) { sequences_[sequence.id_].length += num_tokens; }
  // Lets others share the sequence's full blocks. `written_by`: the last step that writes any of them.
  void commit(const KvSequence& sequence, const TokenChain& chain, std::uint64_t written_by) {
    Sequence& s = sequences_[sequence.id_];
    const int num_known = std::min(static_cast<int>(chain.tokens.size()), s.length);
    const bool has_full_block = num_known >= (s.num_committed + 1) * config_.tokens_per_block;
    if (has_full_block && config_.enable_block_reuse) commit_blocks(s, chain, num_known, written_by);
  }
  // No new sequence shares blocks that hold the chain's tokens (what was computed of it is suspect, whoever holds the
  // blocks now), or blocks that `step` or later ones wrote.
  void forget(const TokenChain& chain);
  void forget_written_since(std::uint64_t step);

  // Both consume their argument when they succeed, and change nothing when blocks are missing. `hit`: what the cache
  // still holds of the sequence, as find_prefix(chain, length(sequence)) says; only the rest is copied.
  std::optional<HostSequence> swap_out(KvSequence& sequence, std::vector<CopyOrder>& copies);
  std::optional<KvSequence> swap_in(HostSequence& sequence, const PrefixHit& hit, std::vector<CopyOrder>& copies);

  std::span<const std::int32_t> blocks(const SequenceHandle& sequence) const { return sequences_[sequence.id_].blocks; }
  // Tokens the sequence's blocks have room for.
  int capacity(const SequenceHandle& sequence) const {
    return static_cast<int>(sequences_[sequence.id_].blocks.size()) * config_.tokens_per_block;
  }
  int length(const SequenceHandle& sequence) const { return sequences_[sequence.id_].length; }
  // Blocks of the sequence that nobody else references: what releasing it would bring.
  int num_exclusive_blocks(const KvSequence& sequence) const;
  // Index of the first block-table entry that changed since the last call; blocks().size() if none did.
  int take_first_change(const KvSequence& sequence) {
    Sequence& s = sequences_[sequence.id_];
    return std::exchange(s.first_change, static_cast<std::int32_t>(s.blocks.size()));
  }

  void step_launched(std::uint64_t step) { launched_ = step; }
  void step_ended(std::uint64_t step);

  // Throws std::logic_error naming the first violation: reference counts equal the number of holders, every block is in
  // exactly one place, no sequence holds a block twice, the prefix cache is consistent.
  void check_integrity() const;

 private:
  friend class SequenceHandle;
  struct Sequence {
    std::vector<std::int32_t> blocks;
    std::int32_t length = 0;
    std::int32_t writable = 0;      // positions below it may be written without another look
    std::int32_t first_change = 0;  // see take_first_change
    std::int32_t num_committed = 0;
    PrefixCache::EntryId parent = PrefixCache::kRoot;  // entry of the last committed block
    bool on_host = false;
    bool in_use = false;
  };

  std::uint32_t new_sequence(bool on_host);
  bool grow(Sequence& sequence, int num_tokens, std::vector<CopyOrder>& copies);
  void commit_blocks(Sequence& sequence, const TokenChain& chain, int num_known, std::uint64_t written_by);
  void share_prefix(Sequence& sequence, const PrefixHit& hit);
  std::int32_t take_block();
  void drop_entry(std::int32_t block);
  void close(std::uint32_t id, std::uint64_t last_step);

  KvManagerConfig config_;
  BlockPool device_;
  BlockPool host_;
  PrefixCache prefixes_;
  std::vector<Sequence> sequences_;
  std::vector<std::uint32_t> unused_sequences_;
  std::vector<std::int32_t> hit_;  // storage of PrefixHit::blocks
  std::uint64_t launched_ = 0;
  KvCacheCounters counters_;
};

inline SequenceHandle::~SequenceHandle() {
  if (manager_ != nullptr) manager_->close(id_, manager_->launched_);
}

}  // namespace tl
