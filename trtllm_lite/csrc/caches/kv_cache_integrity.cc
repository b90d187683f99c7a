#include <algorithm>
#include <stdexcept>
#include <string>

#include "caches/kv_cache_manager.h"

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

  constexpr int kNoGroup = -1;
  std::vector<int> device_holders(config_.num_blocks, 0);
  std::vector<int> host_holders(config_.num_host_blocks, 0);
  std::vector<int> group_of(config_.num_blocks, kNoGroup);
  for (std::uint32_t id = 0; id < sequences_.size(); ++id) {
    const Sequence& s = sequences_[id];
    const std::string name = "sequence " + std::to_string(id);
    check(s.num_unsettled >= 0 && s.num_unsettled <= s.length, name + " has more unsettled positions than tokens");
    const int sure = s.length - s.num_unsettled;
    check(s.num_committed * config_.tokens_per_block <= sure, name + " committed what may be taken back");
    std::vector<std::int32_t> held;
    for (int group = 0; group < geometry_.num_groups(); ++group) {
      const Table& t = table(id, group);
      check(s.in_use || t.blocks.empty(), name + " is closed and holds blocks");
      check(geometry_.kind(group).num_entries(std::max(s.length, s.writable)) <= std::ssize(t.blocks),
            name + " is longer than its blocks");
      check(t.first <= geometry_.kind(group).first_needed(sure), name + " gave back what its window reaches");
      for (const std::int32_t first : t.held()) {
        check(first % geometry_.blocks(group) == 0, name + " holds a run that begins between two");
        for (std::int32_t block = first; block < first + geometry_.blocks(group); ++block) {
          held.push_back(block);
          ++(s.on_host ? host_holders : device_holders).at(static_cast<std::size_t>(block));
          if (s.on_host) continue;
          check(group_of[block] == kNoGroup || group_of[block] == group, name + " holds a block of another group");
          group_of[block] = group;
        }
      }
    }
    std::ranges::sort(held);
    check(std::ranges::adjacent_find(held) == held.end(), name + " holds a block twice");
  }

  int num_extra = 0;
  for (std::int32_t block = 0; block < config_.num_blocks; ++block) {
    const std::string name = "block " + std::to_string(block);
    check(device_holders[block] == device_.refcount(block), name + " has a wrong reference count");
    check(!device_.is_cached(block) || prefixes_.contains(entry_of(block)), name + " is cached and cannot be found");
    for (int i = 0; prefixes_.contains(block) && i < geometry_.blocks(prefixes_.group(block)); ++i) {
      check(device_.is_cached(block + i), name + " can be found and is not cached");
    }
    if (group_of[block] != kNoGroup && geometry_.kind(group_of[block]).gives_back())
      num_extra += device_holders[block] - 1;
  }
  int num_leaving = 0;
  for (int slab = 0; slab < lent_.num_slabs(); ++slab) {
    const int num_present = lent_.num_present(slab, device_);
    check(!lent_.is_lent(slab) || num_present == 0, "slab " + std::to_string(slab) + " is lent with blocks in it");
    num_leaving += lent_.leaving() == slab ? num_present : 0;
  }
  for (std::int32_t block = 0; block < config_.num_blocks; ++block) {
    check(!lent_.is_leaving(block) || !device_.is_cached(block), "a block on its way is cached");
  }
  check(num_leaving == lent_.num_leaving(), "blocks of the slab on its way are miscounted");
  check(num_extra == num_extra_, "references to blocks of windowed groups are miscounted");
  for (std::int32_t block = 0; block < config_.num_host_blocks; ++block) {
    check(host_holders[block] == host_.refcount(block) && host_holders[block] <= 1,
          "host block " + std::to_string(block) + " has a wrong reference count");
    const std::int32_t cached = config_.num_blocks + block;
    check(!host_.is_cached(block) || prefixes_.contains(entry_of(cached)),
          "host block " + std::to_string(block) + " is cached and cannot be found");
    for (int i = 0; prefixes_.contains(cached) && i < geometry_.blocks(prefixes_.group(cached)); ++i) {
      check(host_.is_cached(block + i), "host block " + std::to_string(block) + " can be found and is not cached");
    }
  }
}

}  // namespace tl
