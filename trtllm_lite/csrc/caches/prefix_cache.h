// Finds full blocks of any sequence by the tokens that they hold.
//
// Entries of cache group 0 are found by content and form chains. Entries of other groups are companions of the entry of
// group 0 for the same tokens, and are found through it. An entry keeps its id while its content moves between blocks,
// so that those that follow it are found from any of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "caches/block_pool.h"
#include "executor/prompt_rows.h"

namespace tl {

// A sequence's known tokens and the hash chain over its full blocks: hashes[i] covers the salt and the tokens of blocks
// 0 to i.
struct TokenChain {
  std::span<const std::int32_t> tokens;
  std::vector<std::uint64_t>& hashes;  // extended on demand by PrefixCache::extend_hashes
  std::string_view salt;               // tenants with different salts never share a block
  const PromptRows* rows = nullptr;    // embeddings in place of tokens, of which only digests are compared
};

// An entry stands for a block's tokens and the entry before it in its sequence. The hash only finds candidates: tokens,
// parent entry, salt and digests of embeddings (128 bits, with a key of the process) are compared too, so that not even
// a deliberate collision can share wrong content.
class PrefixCache {
 public:
  PrefixCache(int num_blocks, int tokens_per_block, std::uint64_t hash_seed);

  using EntryId = std::uint64_t;  // never reused, so a child of an evicted entry cannot be found through a new one
  static constexpr EntryId kRoot = 0;

  // Appends the hashes of the chain's full blocks that are missing.
  void extend_hashes(const TokenChain& chain) const;

  // The block with the tokens of block `index` of the chain, after entry `parent`; kNoBlock if there is none.
  std::int32_t find(const TokenChain& chain, int index, EntryId parent) const;
  // Adds `block` as block `index` of the chain. `written_by`: the step that writes its last token.
  EntryId insert(std::int32_t block, const TokenChain& chain, int index, EntryId parent, std::uint64_t written_by);
  // The block of another group with the same tokens as entry `entry` of group 0.
  std::int32_t find_companion(EntryId entry, int group) const;
  void insert_companion(std::int32_t block, EntryId entry, int group, std::uint64_t written_by);
  void erase(std::int32_t block);
  // Moves the entry of block `from` to block `to`, which has none. `copied_by`: the step that copies the content.
  void move(std::int32_t from, std::int32_t to, std::uint64_t copied_by);

  bool contains(std::int32_t block) const { return entries_[block].id != kRoot; }
  EntryId id(std::int32_t block) const { return entries_[block].id; }
  int group(std::int32_t block) const { return entries_[block].group; }
  std::uint64_t written_by(std::int32_t block) const { return entries_[block].written_by; }
  int size() const { return size_; }

  // Throws std::logic_error unless every entry is found exactly once in the list of its own hash.
  void check_integrity() const;

 private:
  struct Entry {
    EntryId id = kRoot;  // kRoot if the block is not in the cache
    EntryId parent = kRoot;
    std::uint64_t hash = 0;
    std::uint64_t written_by = 0;
    std::int32_t next = kNoBlock;  // next block in the bucket
    std::int32_t group = 0;        // if not 0, the entry is a companion of `parent` and has no tokens
    std::string salt;              // only for first blocks; later ones inherit it through `parent`
    std::string rows;              // places and digests of embeddings among the block's tokens
  };

  std::span<const std::int32_t> tokens_of(const TokenChain& chain, int index) const {
    return chain.tokens.subspan(static_cast<std::size_t>(index) * tokens_per_block_, tokens_per_block_);
  }
  // The place in the block and the digest of each embedding in block `index` of the chain; empty if there are none.
  std::string rows_of(const TokenChain& chain, int index) const;
  const std::int32_t* tokens_in(std::int32_t block) const {
    return tokens_.data() + static_cast<std::size_t>(block) * tokens_per_block_;
  }
  Entry& enter(std::int32_t block, EntryId parent, std::uint64_t hash, int group, std::uint64_t written_by);
  std::int32_t& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  int tokens_per_block_;
  std::uint64_t hash_seed_;
  std::vector<Entry> entries_;        // the entry of each block
  std::vector<std::int32_t> tokens_;  // [num_blocks, tokens_per_block]
  std::vector<std::int32_t> buckets_;
  EntryId last_id_ = kRoot;
  int size_ = 0;
};

}  // namespace tl
