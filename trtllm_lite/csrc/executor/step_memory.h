// What every device does before the rows of a step: copies of KV blocks, then updates of the block tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "executor/step.h"

namespace tl {

// The block tables of all slots, one for each cache group. Entries never set are block 0.
class BlockTables {
 public:
  BlockTables(int num_slots, int num_groups)
      : num_groups_(static_cast<std::size_t>(num_groups)), tables_(static_cast<std::size_t>(num_slots) * num_groups_) {}

  int num_groups() const { return static_cast<int>(num_groups_); }
  std::span<const std::int32_t> blocks(int slot, int group) const {
    return tables_[static_cast<std::size_t>(slot) * num_groups_ + static_cast<std::size_t>(group)];
  }

  void clear(int slot) {
    for (int group = 0; group < num_groups(); ++group) table(slot, group).clear();
  }
  void update(std::span<const TableUpdate> updates) {
    for (const TableUpdate& update : updates) {
      std::vector<std::int32_t>& blocks = table(update.slot, update.group);
      blocks.resize(std::max(blocks.size(), static_cast<std::size_t>(update.index) + 1));
      blocks[static_cast<std::size_t>(update.index)] = update.block;
    }
  }

 private:
  std::vector<std::int32_t>& table(int slot, int group) {
    return tables_[static_cast<std::size_t>(slot) * num_groups_ + static_cast<std::size_t>(group)];
  }

  std::size_t num_groups_;
  std::vector<std::vector<std::int32_t>> tables_;
};

// `host_block(index)`: the argument for the device's save_block and load_block for block `index` on the host.
template <typename Device, typename HostBlock>
void copy_blocks(std::span<const CopyOrder> orders, Device& device, HostBlock host_block) {
  for (const CopyOrder& order : orders) {
    switch (order.kind) {
      case CopyKind::kDeviceToDevice:
        device.copy_block(order.src, order.dst);
        break;
      case CopyKind::kDeviceToHost:
        device.save_block(order.src, host_block(order.dst));
        break;
      case CopyKind::kHostToDevice:
        device.load_block(order.dst, host_block(order.src));
        break;
    }
  }
}

}  // namespace tl
