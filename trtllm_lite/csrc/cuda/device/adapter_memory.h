// Memory of a GPU for adapters: slots that hold their 16-bit matrices as the LowRank kernels read them. Addresses of
// all slots are reserved; memory is mapped for slots that have an adapter.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "adapters/adapter.h"
#include "cuda/device/device.h"
#include "cuda/device/mapped_memory.h"
#include "engine/engine.h"

namespace tl::cuda {

class AdapterMemory {
 public:
  // Reserves the addresses of `num_slots` slots, and up to `own_bytes` of the device's memory for them; further memory
  // comes from add(). Throws LimitError, DeviceError.
  AdapterMemory(const Device& device, const Plan& plan, int num_slots, std::size_t own_bytes);

  int num_slots() const { return num_slots_; }
  // The memory of slots, and unused memory.
  std::size_t num_bytes() const { return memory_.num_mapped_bytes() + num_spare_ * memory_.slab_bytes(); }
  // The address of a plan tensor of the kind adapter in the first slot.
  DevicePtr address(std::size_t tensor) const {
    return memory_.address() + static_cast<DevicePtr>(plan_.tensors[tensor].offset);
  }

  // The following are called by one thread at a time.
  // The most slabs that come from add() at once.
  int max_borrowed() const { return memory_.num_slabs() - num_own_; }
  // The number of slabs that add() must bring before an adapter is placed in the slot.
  int num_missing(int slot) const;
  void add(Slab memory);
  // Makes a slot empty that no running request uses. A step of a finished request may still read it: wait for it first.
  void empty(int slot);
  // Memory that no slot uses; nothing if there is none.
  std::optional<Slab> take_unused();

  // Clears memory that had another use, and waits for it. (Bytes of adapters may be no numbers in a KV cache.)
  void clear(DevicePtr address, std::size_t bytes);

  // Copies an adapter into a slot that no running request uses, and waits for the copy. Throws LimitError for an
  // adapter of another engine, std::logic_error if num_missing() is not 0. Steps go on meanwhile: the copy has its own
  // stream and is cut into pieces, so that a step's inputs can pass between them. (A step of a finished request may
  // still read the slot while it is overwritten. It reads only within the slot, and its results are discarded.)
  void fill(int slot, const Adapter& adapter);

 private:
  // Page-locked memory. The device reads one piece while the host fills the other.
  struct Piece {
    PinnedBuffer memory;
    OwnedEvent read;
    bool in_use = false;
  };

  // Rows in contiguous memory.
  struct Rows {
    const std::byte* data;
    std::int64_t num_rows;
    std::size_t row_bytes;
  };

  // The slabs that a slot reaches into: the first, and the one behind the last.
  std::pair<int, int> slabs_of(int slot) const;
  bool is_used(int slab) const;
  void check_slot(int slot) const;
  // Maps memory for a slot.
  void prepare(int slot);
  Piece& next_piece();
  DevicePtr place(int tensor, int slot) const;
  void fill_product(int slot, const AdaptedProduct& product, const HalfPart* parts);
  // Copies `rows` to the device and pads them with zeros to `num_rows` rows of `row_bytes`.
  void send(DevicePtr to, std::int64_t num_rows, std::size_t row_bytes, const Rows& rows);
  static void copy(const Rows& rows, std::int64_t first, std::int64_t count, std::size_t row_bytes, std::byte* to);

  const Device& device_;
  const Plan& plan_;
  const LowRankShapes shapes_;
  const int num_slots_;
  const std::size_t slot_bytes_;
  MappedMemory memory_;
  const int num_own_;  // slabs that were reserved with the slots
  std::vector<Slab> spare_;
  std::atomic<std::size_t> num_spare_ = 0;
  std::vector<bool> is_filled_;  // by slot
  OwnedStream stream_;
  std::mutex filling_;
  std::array<Piece, 2> pieces_;
  std::size_t turn_ = 0;
};

}  // namespace tl::cuda
