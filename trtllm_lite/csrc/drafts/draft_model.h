// An engine that drafts for another engine on the same device.
#pragma once

#include <cstdint>
#include <memory>

#include "drafts/drafter.h"
#include "executor/device_executor.h"

namespace tl {

// Throws ArgumentError for an engine that cannot draft for `target`, LimitError if its limits are too low for this
// number of sequences of up to `max_seq_len` tokens.
void check_draft_model(const Engine& target, const Engine& draft, int max_seq_len, int max_batch_size);

// Makes the drafter of an event loop over `executor`, whose step executor has `num_slots` slots. Borrows `draft`, whose
// engine must have passed check_draft_model() and which must have the same number of blocks.
std::shared_ptr<Drafter> draft_model(const DeviceExecutor& executor, DeviceExecutor& draft, int max_batch_size,
                                     std::int64_t num_host_blocks, int num_slots);

}  // namespace tl
