#include <algorithm>
#include <stdexcept>
#include <string>

#include "batching/kv_cache_manager.h"

namespace tl {
namespace {

void check(bool ok, const std::string& what) {
  if (!ok) throw std::logic_error("KV cache: " + what);
}

}  // namespace

void KvCacheManager::check_integrity() const {
  device_.check_integrity();
  host_.check_integrity();
  prefixes_.check_integrity();

  std::vector<int> device_holders(config_.num_blocks, 0);
  std::vector<int> host_holders(config_.num_host_blocks, 0);
  for (std::size_t id = 0; id < sequences_.size(); ++id) {
    const Sequence& s = sequences_[id];
    const std::string name = "sequence " + std::to_string(id);
    check(s.in_use || s.blocks.empty(), name + " is closed and holds blocks");
    check(num_blocks_for(std::max(s.length, s.writable)) <= static_cast<int>(s.blocks.size()),
          name + " is longer than its blocks");
    check(s.num_committed * config_.tokens_per_block <= s.length, name + " committed what is not written");
    for (const std::int32_t block : s.blocks) ++(s.on_host ? host_holders : device_holders)[block];
    std::vector<std::int32_t> sorted = s.blocks;
    std::ranges::sort(sorted);
    check(std::ranges::adjacent_find(sorted) == sorted.end(), name + " holds a block twice");
  }

  for (std::int32_t block = 0; block < config_.num_blocks; ++block) {
    const std::string name = "block " + std::to_string(block);
    check(device_holders[block] == device_.refcount(block), name + " has a wrong reference count");
    check(prefixes_.contains(block) == device_.is_cached(block), name + " is cached in one place only");
  }
  for (std::int32_t block = 0; block < config_.num_host_blocks; ++block) {
    check(host_holders[block] == host_.refcount(block) && host_holders[block] <= 1,
          "host block " + std::to_string(block) + " has a wrong reference count");
  }
}

}  // namespace tl
