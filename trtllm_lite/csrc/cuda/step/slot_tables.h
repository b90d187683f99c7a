// Block tables by slot, and a record of what an earlier step's packed inputs hold, so that only changes are written: a
// sequence that decodes gets a block only every few steps, and little else changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/step_memory.h"

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
  // The version of a slot's tables, greater than 0. Every change gives a new number, and no two slots ever share one.
  std::uint64_t version(int slot) const { return versions_[static_cast<std::size_t>(slot)]; }

 private:
  BlockTables blocks_;
  std::vector<std::uint64_t> versions_;
  std::uint64_t last_version_ = 0;
};

// For each row of packed inputs, the version that was written last.
class WrittenRows {
 public:
  // Prepares for `num_rows` rows. If `place` differs from the last one, all are written anew.
  void place(std::size_t place, std::int64_t num_rows) {
    if (place != place_) std::ranges::fill(versions_, 0);
    place_ = place;
    versions_.resize(std::max(versions_.size(), static_cast<std::size_t>(num_rows)));
  }
  // Sets the row's version. Returns whether the row must be written; version 0 means always.
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

// What packed inputs hold from an earlier step: versions of the sequences' block tables and, by token, of the decode
// rows of one token.
struct WrittenInputs {
  WrittenRows tables, decodes;
};

}  // namespace tl::cuda
