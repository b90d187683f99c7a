// A stream for steps of an encoder that run beside a longer one, and their memory.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "cuda/device/program.h"
#include "cuda/step/input_layout.h"
#include "engine/engine.h"

namespace tl::cuda {

// The most tokens of a text that is short, and of a step on a side stream. A smaller step takes about as long, as its
// kernels have to follow each other, so that it pays to compute more texts at once.
constexpr int kSideTokens = 512;

// Steps on this stream are within beside_extents() of kSideTokens. Their kernels are begun before those of the
// executor's stream, as soon as blocks of these make room. They share weights with the other steps, and nothing that is
// written.
class SideStream {
 public:
  // Borrows all but the addresses, which are those of the executor's own steps. `largest`: the layout of the inputs of
  // the largest step on this stream. Throws LimitError if the device lacks memory.
  SideStream(const Device& device, const Plan& plan, ProgramSet& programs, Addresses addresses,
             const InputLayout& largest);

  // Enqueues a step. `inputs` are packed as `layout` says, in page-locked memory that must not change until the step
  // has ended.
  void enqueue(const Program& program, const Extents& step, const InputLayout& layout, const std::byte* inputs);

  Stream stream() const { return stream_.get(); }
  // The address of a tensor of the plan, given by its number.
  DevicePtr address_of(int tensor) const { return addresses_[static_cast<std::size_t>(tensor)]; }
  std::size_t num_bytes() const { return arena_.size() + inputs_.size() + workspace_bytes_; }
  std::size_t max_input_bytes() const { return inputs_.size(); }

 private:
  const Plan& plan_;
  ProgramSet& programs_;
  OwnedStream stream_;
  DeviceBuffer arena_, inputs_;
  Addresses addresses_;
  std::size_t workspace_bytes_;
};

}  // namespace tl::cuda
