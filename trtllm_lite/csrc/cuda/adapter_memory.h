// The slots of a GPU's memory for adapters: their matrices in 16 bits, as the kernels of LowRank read them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "adapters/adapter.h"
#include "cuda/device.h"
#include "engine/engine.h"

namespace tl::cuda {

class AdapterMemory {
 public:
  // Reserves `num_slots` slots as the plan lays them out. Throws LimitError if there is not so much memory.
  AdapterMemory(const Device& device, const Plan& plan, int num_slots);

  int num_slots() const { return num_slots_; }
  std::size_t num_bytes() const { return memory_.size(); }
  // The address of a tensor of the plan of the kind adapter.
  DevicePtr address(std::size_t tensor) const { return memory_.address() + offsets_[tensor]; }

  // Copies an adapter into a slot that no running request has, and waits; throws LimitError for one of another engine.
  // Steps run meanwhile: the copies have a stream of their own and come in pieces, between which a step's inputs pass.
  // (A step of a request that has ended may still read the slot. It stays within it, whatever it finds, and nobody
  // reads what comes of that row.)
  void fill(int slot, const Adapter& adapter);

 private:
  // Page-locked memory that the device reads while the other piece is filled.
  struct Piece {
    PinnedBuffer memory;
    OwnedEvent read;
    bool in_use = false;
  };

  // Rows that lie one after the other.
  struct Rows {
    const std::byte* data;
    std::int64_t num_rows;
    std::size_t row_bytes;
  };

  Piece& next_piece();
  DevicePtr place(int tensor, int slot) const;
  void fill_product(int slot, const AdaptedProduct& product, const HalfPart* parts);
  // Sends `num_rows` rows of `row_bytes`: those of `rows`, padded with zeroes.
  void send(DevicePtr to, std::int64_t num_rows, std::size_t row_bytes, const Rows& rows);
  static void copy(const Rows& rows, std::int64_t first, std::int64_t count, std::size_t row_bytes, std::byte* to);

  const Device& device_;
  const Plan& plan_;
  const LowRankShapes shapes_;
  const int num_slots_;
  std::vector<std::size_t> offsets_;  // by tensor of the plan
  DeviceBuffer memory_;
  OwnedStream stream_;
  std::mutex filling_;
  std::array<Piece, 2> pieces_;
  std::size_t turn_ = 0;
};

}  // namespace tl::cuda
