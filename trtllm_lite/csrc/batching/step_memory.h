// What every device does before the rows of a step: copies of KV blocks, then the block tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "batching/step.h"

namespace tl {

using BlockTables = std::vector<std::vector<std::int32_t>>;  // by slot

// `host_block(index)` is what the device's save_block and load_block take for a block on the host.
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

inline void update_tables(std::span<const TableUpdate> updates, BlockTables& tables) {
  for (const TableUpdate& update : updates) {
    std::vector<std::int32_t>& blocks = tables[static_cast<std::size_t>(update.slot)];
    blocks.resize(std::max(blocks.size(), static_cast<std::size_t>(update.index) + 1));
    blocks[static_cast<std::size_t>(update.index)] = update.block;
  }
}

}  // namespace tl
