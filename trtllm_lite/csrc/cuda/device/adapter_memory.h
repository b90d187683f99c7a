// Memory of a GPU for adapters: slots that hold their 16-bit matrices as the LowRank kernels read them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "adapters/adapter.h"
#include "cuda/device/device.h"
#include "engine/engine.h"

namespace tl::cuda {

class AdapterMemory {
 public:
  // Reserves `num_slots` slots as the plan lays them out. Throws LimitError if the GPU has too little memory.
  AdapterMemory(const Device& device, const Plan& plan, int num_slots);

  int num_slots() const { return num_slots_; }
  std::size_t num_bytes() const { return memory_.size(); }
  // The address of a plan tensor of the kind adapter.
  DevicePtr address(std::size_t tensor) const { return memory_.address() + offsets_[tensor]; }

  // Copies an adapter into a slot that no running request uses, and waits for the copy. Throws LimitError for an
  // adapter of another engine. Steps go on meanwhile: the copy has its own stream and is cut into pieces, so that a
  // step's inputs can pass between them. (A step of a finished request may still read the slot while it is overwritten.
  // It reads only within the slot, and its results are discarded.)
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
  std::vector<std::size_t> offsets_;  // indexed by tensor of the plan
  DeviceBuffer memory_;
  OwnedStream stream_;
  std::mutex filling_;
  std::array<Piece, 2> pieces_;
  std::size_t turn_ = 0;
};

}  // namespace tl::cuda
