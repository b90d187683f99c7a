// Block tables by slot, and what the packed inputs of an earlier step hold already: a sequence gets a block only every
// few steps, and of a sequence that decodes little else changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "batching/step_memory.h"

namespace tl::cuda {

class SlotTables {
 public:
  SlotTables(int num_slots, int num_groups)
      : blocks_(num_slots, num_groups), versions_(static_cast<std::size_t>(num_slots)) {}

  int num_groups() const { return blocks_.num_groups(); }
  void clear(int slot) {
    blocks_.clear(slot);
    versions_[static_cast<std::size_t>(slot)] = ++last_version_;
  }
  void update(std::span<const TableUpdate> updates) {
    blocks_.update(updates);
    for (const TableUpdate& update : updates) versions_[static_cast<std::size_t>(update.slot)] = ++last_version_;
  }

  std::span<const std::int32_t> blocks(int slot, int group) const { return blocks_.blocks(slot, group); }
  // The version of a slot's tables: greater than 0, and a number that no other slot's tables have, nor these had before
  // their last change.
  std::uint64_t version(int slot) const { return versions_[static_cast<std::size_t>(slot)]; }

 private:
  BlockTables blocks_;
  std::vector<std::uint64_t> versions_;
  std::uint64_t last_version_ = 0;
};

// What rows of packed inputs were written last.
class WrittenRows {
 public:
  // So many rows follow. At another `place`, other things lay before.
  void place(std::size_t place, std::int64_t num_rows) {
    if (place != place_) std::ranges::fill(versions_, 0);
    place_ = place;
    versions_.resize(std::max(versions_.size(), static_cast<std::size_t>(num_rows)));
  }
  // Whether the row is to be written, which then holds `version`; 0: what is always written.
  bool replace(std::int64_t row, std::uint64_t version) {
    std::uint64_t& written = versions_[static_cast<std::size_t>(row)];
    if (written == version && version != 0) return false;
    written = version;
    return true;
  }

 private:
  std::size_t place_ = 0;
  std::vector<std::uint64_t> versions_;
};

// What has been written of the packed inputs of a step: rows of block_tables, by version, and decode rows, by slot.
struct WrittenInputs {
  WrittenRows tables, decodes;
};

}  // namespace tl::cuda
