// The records from which the device samples (plugins/sample/slot.cuh). A record is made when a sequence takes a slot,
// and copied to the device before its first step.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cuda/cuda_executor.h"
#include "sample/slot.cuh"
#include "sampling/row_sampler.h"

namespace tl::cuda {

class SlotRecords {
 public:
  // Borrows the executor.
  explicit SlotRecords(const CudaExecutor& executor);

  // Puts a sequence into the slot. Returns false if it asks for more than the device's sampler can do or a record can
  // hold.
  bool set(int slot, const RequestParams& params, const SlotState& sequence);
  // The sampling kernel's counter for a slot whose sequence has generated `num_generated` tokens; kGreedy if no random
  // draw is needed.
  std::int32_t counter(int slot, int num_generated) const {
    return is_greedy_[static_cast<std::size_t>(slot)] != 0 ? kGreedy : num_generated;
  }

  // Enqueues copies of the records set since the last call. `staging` holds num_bytes() and must not change until the
  // device has made the copies.
  void enqueue(const PinnedBuffer& staging);
  std::size_t num_bytes() const { return records_.size() * record_bytes_; }  // bytes of all records

 private:
  const std::vector<std::byte>& record(int slot) const { return records_[static_cast<std::size_t>(slot)]; }
  void copy_run(int slot, std::ptrdiff_t count, const PinnedBuffer& staging) const;

  const CudaExecutor& executor_;
  const std::size_t record_bytes_, max_edits_;
  std::vector<char> is_greedy_;                  // by slot: whether the record has only greedy sampling and stops
  std::vector<std::vector<std::byte>> records_;  // by slot
  std::vector<int> pending_;                     // slots whose records have yet to be copied
};

}  // namespace tl::cuda
