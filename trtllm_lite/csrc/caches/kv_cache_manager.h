// The bookkeeping of the paged KV cache: which sequence holds which blocks, and which blocks can be shared, copied,
// evicted or swapped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "caches/block_pool.h"
#include "caches/kv_geometry.h"
#include "caches/kv_sequence.h"
#include "caches/lent_slabs.h"
#include "caches/prefix_cache.h"
#include "executor/step.h"

namespace tl {

struct KvManagerConfig {
  int num_blocks = 0;
  int num_host_blocks = 0;  // 0: preempted sequences are recomputed, and evicted prefixes are lost
  int tokens_per_block = 32;
  bool enable_block_reuse = true;
  std::uint64_t hash_seed = 0;  // random in service, so that nobody can provoke collisions
  std::vector<CacheSpec> groups{{}};
  int max_step_tokens = std::numeric_limits<int>::max();  // the most tokens that a step computes of one sequence
  SlabLayout slabs = {};                                  // the memory that can be lent to other uses of the device

  KvGeometry geometry() const { return {tokens_per_block, groups, max_step_tokens}; }
  // The number of blocks if as much memory as can be is lent.
  int num_kept_blocks() const { return num_blocks - LentSlabs(slabs, num_blocks).max_absent(); }
};

inline KvManagerConfig with_steps_of(KvManagerConfig config, int max_step_tokens) {
  config.max_step_tokens = max_step_tokens;
  return config;
}

// The cached blocks that a new sequence can use. Valid until the next call that changes the manager.
struct PrefixHit {
  int num_blocks = 0;  // cached blocks of the prefix, from the first one on
  // For each cache group, the blocks that a sequence with this prefix needs. They end where the prefix ends. Of a state
  // it needs a copy of the one block here, which is not counted below. Blocks of the host have numbers behind those of
  // the device.
  std::span<const std::vector<std::int32_t>> tables;
  PrefixCache::EntryId last_entry = PrefixCache::kRoot;  // the last entry of group 0
  int num_held = 0;                                      // blocks of all tables
  int num_unreferenced = 0;  // blocks among them that no other sequence holds: open() takes them from the ready blocks
  int num_on_host = 0;       // blocks among these whose content is on the host: open() takes ready ones in their place
  int num_shared = 0;        // blocks of windowed groups among them that other sequences hold
  // The step in preparation writes the next block, or a state, which can be shared from the following step on.
  bool being_written = false;
  // For each cache group, the cached blocks of the longest prefix with which a sequence could begin if that were the
  // only group. The first group's number tells where this chain parts from those before it.
  std::span<const int> reach;
};

struct KvCacheCounters {
  std::int64_t lookup_tokens = 0, hit_tokens = 0;  // totals over opened sequences
  std::int64_t evicted_blocks = 0;                 // cached blocks whose content was lost
  std::vector<std::int64_t> reached_tokens;        // for each cache group, the tokens of PrefixHit::reach
  std::vector<std::int64_t> host_tokens;           // those of hits whose blocks came back from the host
};

// Used by one thread. The manager must outlive its handles. "The step in preparation" is the one after the last
// launched.
class KvCacheManager {
 public:
  explicit KvCacheManager(const KvManagerConfig& config);
  KvCacheManager(const KvCacheManager&) = delete;
  KvCacheManager& operator=(const KvCacheManager&) = delete;

  const KvManagerConfig& config() const { return config_; }
  const KvGeometry& geometry() const { return geometry_; }
  const BlockPool& device() const { return device_; }
  const BlockPool& host() const { return host_; }
  const KvCacheCounters& counters() const { return counters_; }
  const PrefixCache& prefixes() const { return prefixes_; }
  // Blocks taken from the device's pool, where a block of a windowed group counts once for each sequence that holds it:
  // sequences leave such a block one by one, and each then takes a new block of its own.
  // Blocks of memory that is lent, or on its way, count as taken.
  int num_claimed() const { return config_.num_blocks - num_unreferenced() + num_extra_; }
  // Blocks that no sequence holds, without those of memory on its way to another use.
  int num_unreferenced() const { return device_.num_unreferenced() - lent_.num_leaving(); }

  // The longest shareable prefix of full blocks within the first `max_tokens`. It leaves out the last token of the
  // chain, because at least one token must be computed. `length`: the position where the sequence continues, if beyond
  // the end of the prefix.
  PrefixHit find_prefix(const TokenChain& chain, int max_tokens, int length = 0);
  // Opens a sequence of at most max_tokens that begins with the blocks of `hit` (just found for `chain`, or empty), and
  // with a copy of its state: if blocks for known tokens are short, the kept state itself. Content on the host is
  // copied back; blocks for it must be ready.
  KvSequence open(const TokenChain& chain, const PrefixHit& hit, int max_tokens, std::vector<CopyOrder>& copies);
  // Forks a sequence: the new one has the same content. A shared block is copied when either of them reserves it for
  // writing.
  KvSequence fork(const KvSequence& sequence);

  // Makes positions length() .. num_tokens-1 writable (in windowed groups, those that the next step writes). Returns
  // false and changes nothing if too few blocks are ready.
  bool reserve(const KvSequence& sequence, int num_tokens, std::vector<CopyOrder>& copies) {
    return is_writable(sequence, num_tokens) || grow(sequence.id_, num_tokens, copies);
  }
  // Whether reserve() would have nothing to do.
  bool is_writable(const KvSequence& sequence, int num_tokens) const {
    return num_tokens <= sequences_[sequence.id_].writable;
  }
  // Whether a run of blocks is ready on the device, or on the host, if a group needs one.
  bool has_runs() const { return geometry_.run() == 1 || device_.num_ready_runs() > 0; }
  // Whether a sequence with these cached blocks finds a run, which must not be one that they are in: a ready one, or
  // the kept state.
  bool has_run_beside(const PrefixHit& hit) const;
  bool has_host_runs() const { return geometry_.run() == 1 || host_.num_ready_runs() > 0; }
  // The number of blocks that reserve() would take, not counting copies.
  int num_missing(const KvSequence& sequence, int num_tokens) const;
  // Notes that the step in preparation writes num_tokens more reserved positions. The last `num_unsettled` of them may
  // be taken back until the next advance().
  void advance(const KvSequence& sequence, int num_tokens, int num_unsettled = 0) {
    Sequence& s = sequences_[sequence.id_];
    s.length += num_tokens;
    s.num_unsettled = num_unsettled;
  }
  // Takes back the last `num_wrong` unsettled positions and settles the others. The sequence keeps their blocks
  // and writes to them next.
  void settle(const SequenceHandle& sequence, int num_wrong) {
    Sequence& s = sequences_[sequence.id_];
    s.length -= num_wrong;
    s.num_unsettled = 0;
  }
  // Lets others share the sequence's full blocks. `written_by`: the last step that writes any of them.
  void commit(const KvSequence& sequence, const TokenChain& chain, std::uint64_t written_by) {
    Sequence& s = sequences_[sequence.id_];
    const int num_known = std::min(static_cast<int>(chain.tokens.size()), s.length - s.num_unsettled);
    const bool has_full_block = num_known >= (s.num_committed + 1) * config_.tokens_per_block;
    if (has_full_block && shares_prefixes()) commit_blocks(sequence.id_, chain, num_known, written_by);
  }
  // Whether other sequences could go on from the state that this one has now, at the end of its last committed block,
  // and nothing is kept of it yet.
  bool can_keep_state(const KvSequence& sequence) const;
  // Keeps a copy of that state for them. A run must be ready.
  void keep_state(const KvSequence& sequence, std::vector<CopyOrder>& copies);
  // Releases the blocks that no attention window of the next tokens to compute reaches. `last_step`: the last step that
  // reads them.
  void leave_behind(const KvSequence& sequence, std::uint64_t last_step) {
    if (geometry_.gives_back()) drop_behind_windows(sequence.id_, last_step);
  }
  // Stops sharing blocks that hold the chain's tokens (their content may be wrong, whoever holds them now), or blocks
  // that `step` or a later step wrote.
  void forget(const TokenChain& chain);
  void forget_written_since(std::uint64_t step);

  // swap_out and swap_in consume their argument if they succeed, and change nothing if blocks are missing. `hit`: what
  // the cache still has of the sequence, from find_prefix(chain, length, length); only the rest is copied.
  std::optional<HostSequence> swap_out(KvSequence& sequence, std::vector<CopyOrder>& copies);
  std::optional<KvSequence> swap_in(HostSequence& sequence, const PrefixHit& hit, std::vector<CopyOrder>& copies);

  // Memory is lent slab by slab: LentSlabs chooses one and counts the blocks that the cache loses with it.
  const LentSlabs& lent() const { return lent_; }
  // Sends a slab on its way, whose blocks are no longer shared with further sequences; go_on_lending() returns it when
  // no block is left in it, and no step reaches it.
  void begin_lending(int slab);
  std::optional<int> go_on_lending() { return lent_.go_on(device_); }
  void give_back(int slab) { lent_.give_back(slab, device_); }

  // The sequence's block table in a group. The sequence holds only the entries from first_block() on.
  std::span<const std::int32_t> blocks(const SequenceHandle& sequence, int group = 0) const {
    return table(sequence.id_, group).blocks;
  }
  int first_block(const SequenceHandle& sequence, int group) const { return table(sequence.id_, group).first; }
  // Numbers of blocks over all groups: blocks that the sequence holds, blocks that no other sequence holds (which
  // releasing this one would free), and blocks that contain tokens.
  int num_held_blocks(const SequenceHandle& sequence) const;
  int num_exclusive_blocks(const KvSequence& sequence) const;
  int num_used_blocks(const SequenceHandle& sequence) const;
  // Positions written or about to be, including unsettled ones.
  int length(const SequenceHandle& sequence) const { return sequences_[sequence.id_].length; }
  int num_unsettled(const SequenceHandle& sequence) const { return sequences_[sequence.id_].num_unsettled; }
  // Tokens at the sequence's beginning that other sequences hold too. They need not be recomputed if this one is
  // preempted.
  int num_shared_tokens(const KvSequence& sequence) const;
  // Whether any of the sequence's tables changed since the last call; take_first_change() says where.
  bool take_changed(const KvSequence& sequence) { return std::exchange(sequences_[sequence.id_].changed, false); }
  // Index of the first table entry of the group that changed since the last call; the table's size if none did.
  int take_first_change(const KvSequence& sequence, int group) {
    Table& t = table(sequence.id_, group);
    return std::max(std::exchange(t.first_change, static_cast<std::int32_t>(t.blocks.size())), t.first);
  }

  void step_launched(std::uint64_t step);
  void step_ended(std::uint64_t step);

  // Checks that reference counts equal the number of holders, every block is in exactly one place, no sequence holds a
  // block twice, and the prefix cache is consistent. Throws std::logic_error that names the first violation.
  void check_integrity() const;

 private:
  friend class SequenceHandle;
  struct Table {
    std::vector<std::int32_t> blocks;  // entries before `first` have been released
    std::int32_t first = 0;
    std::int32_t first_change = 0;  // see take_first_change
    std::span<const std::int32_t> held() const { return std::span(blocks).subspan(static_cast<std::size_t>(first)); }
  };
  struct Sequence {
    std::int32_t length = 0;
    std::int32_t num_unsettled = 0;  // positions below `length` that may be taken back
    std::int32_t writable = 0;       // positions below it may be written without a further check
    std::int32_t num_committed = 0;
    PrefixCache::EntryId parent = PrefixCache::kRoot;  // entry of the last committed block
    bool on_host = false;
    bool changed = true;  // see take_changed
    bool in_use = false;
  };

  std::uint32_t new_sequence(bool on_host);
  std::span<Table> tables(std::uint32_t id) {
    const auto num_groups = static_cast<std::size_t>(geometry_.num_groups());
    return std::span(tables_).subspan(id * num_groups, num_groups);
  }
  std::span<const Table> tables(std::uint32_t id) const {
    const auto num_groups = static_cast<std::size_t>(geometry_.num_groups());
    return std::span(tables_).subspan(id * num_groups, num_groups);
  }
  Table& table(std::uint32_t id, int group) { return tables(id)[static_cast<std::size_t>(group)]; }
  const Table& table(std::uint32_t id, int group) const { return tables(id)[static_cast<std::size_t>(group)]; }
  bool grow(std::uint32_t id, int num_tokens, std::vector<CopyOrder>& copies);
  int num_new_entries(std::uint32_t id, int group, int num_tokens) const;
  bool shares_tail(std::uint32_t id, int group) const;
  void commit_blocks(std::uint32_t id, const TokenChain& chain, int num_known, std::uint64_t written_by);
  bool commit_block(std::uint32_t id, const TokenChain& chain, int index, std::uint64_t written_by);
  void drop_behind_windows(std::uint32_t id, std::uint64_t last_step);
  void hold_prefix(std::uint32_t id, const PrefixHit& hit);
  void share_prefix(std::uint32_t id, int group, const PrefixHit& hit, std::vector<CopyOrder>& copies);
  void begin_state(std::uint32_t id, int group, std::int32_t kept, int num_needed, std::vector<CopyOrder>& copies);
  bool can_copy_state(int group, int num_needed) const;
  void count_hit(const TokenChain& chain, const PrefixHit& hit);
  void retain(std::int32_t block, int group);
  void release(std::int32_t block, int group, std::uint64_t last_step);
  std::int32_t take_entry(int group, std::vector<CopyOrder>& copies);
  std::int32_t take_host_entry(int group);
  void copy_entry(CopyKind kind, std::int32_t from, std::int32_t to, int group, std::vector<CopyOrder>& copies) const;
  // Whether sequences share blocks of equal tokens.
  bool shares_prefixes() const { return config_.enable_block_reuse && !geometry_.kind(0).sums_up(); }
  void enter_companion(std::int32_t block, PrefixCache::EntryId entry, int group, std::uint64_t written_by);
  std::int32_t entry_of(std::int32_t block) const;
  void drop_entry(std::int32_t block);
  void lose_entry(std::int32_t block);
  // The prefix cache numbers the blocks of the host behind those of the device.
  bool is_on_host(std::int32_t block) const { return block >= config_.num_blocks; }
  std::int32_t host_block(std::int32_t block) const { return block - config_.num_blocks; }
  void set_cached(std::int32_t block, bool cached);
  bool move_to_host(std::int32_t block, std::vector<CopyOrder>& copies);
  std::int32_t bring_back(std::int32_t block, int group, std::vector<CopyOrder>& copies);
  void retain_host(std::int32_t block, int group);
  void release_host(std::int32_t block, int group, std::uint64_t last_step);
  void close(std::uint32_t id, std::uint64_t last_step);

  KvManagerConfig config_;
  KvGeometry geometry_;
  const std::vector<int> longest_runs_first_;  // the groups in this order: single blocks fill what runs leave
  BlockPool device_;
  BlockPool host_;
  LentSlabs lent_;
  PrefixCache prefixes_;
  std::vector<Sequence> sequences_;
  std::vector<Table> tables_;  // tables of all sequences: by sequence, then by group
  std::vector<std::uint32_t> unused_sequences_;
  std::vector<std::vector<std::int32_t>> hit_;  // storage of PrefixHit::tables
  std::vector<int> complete_from_;              // see find_prefix
  std::vector<int> reach_;                      // storage of PrefixHit::reach
  int num_extra_ = 0;               // extra references to device blocks of windowed groups, beyond the first of each
  std::vector<std::int32_t> left_;  // blocks whose earlier content the step in preparation moves to the host
  std::uint64_t launched_ = 0;
  KvCacheCounters counters_;
};

inline SequenceHandle::~SequenceHandle() {
  if (manager_ != nullptr) manager_->close(id_, manager_->launched_);
}

}  // namespace tl
