#include "caches/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace tl {
namespace {

// Multiplies 64 x 64 -> 128 bits and folds the halves: after two rounds, every input bit affects every output bit.
std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9e3779b97f4a7c15ull) * (b ^ 0xd1342543de82ef95ull);
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::uint64_t hash_text(std::uint64_t seed, std::string_view text) {
  std::uint64_t hash = mix(seed, text.size());
  for (const char c : text) hash = mix(hash, static_cast<unsigned char>(c));
  return hash;
}

std::uint64_t hash_tokens(std::uint64_t parent, std::span<const std::int32_t> tokens) {
  std::uint64_t hash = mix(parent, tokens.size());
  std::size_t i = 0;
  for (; i + 1 < tokens.size(); i += 2) {
    const auto low = static_cast<std::uint32_t>(tokens[i]);
    const auto high = static_cast<std::uint64_t>(static_cast<std::uint32_t>(tokens[i + 1]));
    hash = mix(hash, high << 32 | low);
  }
  return i < tokens.size() ? mix(hash, static_cast<std::uint32_t>(tokens[i])) : hash;
}

}  // namespace

PrefixCache::PrefixCache(int num_blocks, int tokens_per_block, std::uint64_t hash_seed)
    : tokens_per_block_(tokens_per_block),
      hash_seed_(hash_seed),
      entries_(num_blocks),
      tokens_(static_cast<std::size_t>(num_blocks) * tokens_per_block),
      buckets_(std::bit_ceil(static_cast<std::size_t>(num_blocks) * 2), kNoBlock) {}

void PrefixCache::extend_hashes(const TokenChain& chain) const {
  const std::size_t num_full = chain.tokens.size() / tokens_per_block_;
  if (chain.hashes.size() >= num_full) return;
  std::uint64_t parent = chain.hashes.empty() ? hash_text(hash_seed_, chain.salt) : chain.hashes.back();
  for (std::size_t i = chain.hashes.size(); i < num_full; ++i) {
    parent = hash_tokens(parent, tokens_of(chain, static_cast<int>(i)));
    if (const std::string rows = rows_of(chain, static_cast<int>(i)); !rows.empty()) parent = hash_text(parent, rows);
    chain.hashes.push_back(parent);
  }
}

std::string PrefixCache::rows_of(const TokenChain& chain, int index) const {
  std::string text;
  if (chain.rows == nullptr) return text;
  const std::int32_t first = index * tokens_per_block_;
  const std::size_t end = chain.rows->first_from(first + tokens_per_block_);
  for (std::size_t row = chain.rows->first_from(first); row < end; ++row) {
    text += std::to_string(chain.rows->positions[row] - first) + ":";
    text += std::string_view(chain.rows->digests).substr(row * PromptRows::kDigestBytes, PromptRows::kDigestBytes);
  }
  return text;
}

std::int32_t PrefixCache::find(const TokenChain& chain, int index, EntryId parent) const {
  const std::uint64_t hash = chain.hashes[index];
  const std::string rows = rows_of(chain, index);
  std::int32_t block = buckets_[hash & (buckets_.size() - 1)];
  for (; block != kNoBlock; block = entries_[block].next) {
    const Entry& entry = entries_[block];
    if (entry.hash != hash || entry.parent != parent || entry.group != 0) continue;
    if ((parent == kRoot && entry.salt != chain.salt) || entry.rows != rows) continue;
    if (std::ranges::equal(tokens_of(chain, index), std::span(tokens_in(block), tokens_per_block_))) break;
  }
  return block;
}

PrefixCache::EntryId PrefixCache::insert(std::int32_t block, const TokenChain& chain, int index, EntryId parent,
                                         std::uint64_t written_by) {
  Entry& entry = enter(block, parent, chain.hashes[index], 0, written_by);
  entry.salt = parent == kRoot ? chain.salt : std::string_view();
  entry.rows = rows_of(chain, index);
  std::ranges::copy(tokens_of(chain, index), tokens_.begin() + static_cast<std::ptrdiff_t>(block) * tokens_per_block_);
  return entry.id;
}

std::int32_t PrefixCache::find_companion(EntryId of, int group) const {
  const std::uint64_t hash = mix(of, static_cast<std::uint64_t>(group));
  std::int32_t block = buckets_[hash & (buckets_.size() - 1)];
  while (block != kNoBlock && (entries_[block].parent != of || entries_[block].group != group)) {
    block = entries_[block].next;
  }
  return block;
}

void PrefixCache::insert_companion(std::int32_t block, EntryId of, int group, std::uint64_t written_by) {
  enter(block, of, mix(of, static_cast<std::uint64_t>(group)), group, written_by);
}

PrefixCache::Entry& PrefixCache::enter(std::int32_t block, EntryId parent, std::uint64_t hash, int group,
                                       std::uint64_t written_by) {
  Entry& entry = entries_[block];
  entry.id = ++last_id_;
  entry.parent = parent;
  entry.hash = hash;
  entry.group = group;
  entry.written_by = written_by;
  entry.next = std::exchange(bucket(hash), block);
  ++size_;
  return entry;
}

void PrefixCache::erase(std::int32_t block) {
  std::int32_t* link = &bucket(entries_[block].hash);
  while (*link != block) link = &entries_[*link].next;
  *link = entries_[block].next;
  entries_[block].id = kRoot;
  --size_;
}

void PrefixCache::move(std::int32_t from, std::int32_t to, std::uint64_t copied_by) {
  std::int32_t* link = &bucket(entries_[from].hash);
  while (*link != from) link = &entries_[*link].next;
  *link = to;
  entries_[to] = std::exchange(entries_[from], {});
  entries_[to].written_by = copied_by;
  const auto first = tokens_.begin() + static_cast<std::ptrdiff_t>(from) * tokens_per_block_;
  std::copy_n(first, tokens_per_block_, tokens_.begin() + static_cast<std::ptrdiff_t>(to) * tokens_per_block_);
}

void PrefixCache::check_integrity() const {
  std::vector<int> seen(entries_.size(), 0);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (std::int32_t block = buckets_[i]; block != kNoBlock; block = entries_[block].next) {
      const bool own_bucket = (entries_[block].hash & (buckets_.size() - 1)) == i;
      if (!own_bucket || !contains(block) || ++seen[block] > 1) {
        throw std::logic_error("prefix cache: block " + std::to_string(block) + " is in a wrong bucket");
      }
    }
  }
  int size = 0;
  for (std::size_t block = 0; block < entries_.size(); ++block) {
    if ((entries_[block].id != kRoot) != (seen[block] == 1)) {
      throw std::logic_error("prefix cache: block " + std::to_string(block) + " cannot be found");
    }
    size += seen[block];
  }
  if (size != size_) throw std::logic_error("prefix cache: entries miscounted");
}

}  // namespace tl
