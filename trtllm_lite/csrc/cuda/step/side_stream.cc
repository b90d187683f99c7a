#include "cuda/step/side_stream.h"

#include <map>
#include <string>

#include "engine/checks/plan_check.h"
#include "engine/vocabulary.h"
#include "executor/beside.h"

namespace tl::cuda {
namespace {

const std::string kWhat = "workspace of short texts beside long ones", kRemedy = "free memory on the GPU";

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

std::size_t arena_bytes(const Plan& plan) {
  std::int64_t total = 0;
  for (const auto& [_, bytes] : beside_arena(plan, kSideTokens)) total += aligned(bytes);
  return static_cast<std::size_t>(total);
}

// Returns `addresses` with those of the arena in memory at `arena`, where tensors of each offset follow those of the
// offset before.
Addresses moved(const Plan& plan, Addresses addresses, DevicePtr arena) {
  std::map<std::int64_t, DevicePtr> places;
  for (const auto& [offset, bytes] : beside_arena(plan, kSideTokens)) {
    places[offset] = arena;
    arena += static_cast<DevicePtr>(aligned(bytes));
  }
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const PlanTensor& tensor = plan.tensors[i];
    if (tensor.kind == TensorKind::kArena) addresses[i] = places.at(tensor.offset);
  }
  return addresses;
}

}  // namespace

SideStream::SideStream(const Device& device, const Plan& plan, ProgramSet& programs, Addresses addresses,
                       const InputLayout& largest)
    : plan_(plan),
      programs_(programs),
      stream_(make_urgent_stream()),
      arena_(device, arena_bytes(plan), kWhat, kRemedy),
      inputs_(device, largest.bytes, kWhat, kRemedy),
      addresses_(moved(plan, std::move(addresses), arena_.address())),
      workspace_bytes_(programs.add_stream(addresses_, beside_extents(plan.symbols, kSideTokens), stream_.get())) {
  driver().check(driver().fill_bytes(arena_.address(), 0, arena_.size(), stream_.get()), "clearing memory");
}

void SideStream::enqueue(const Program& program, const Extents& step, const InputLayout& layout,
                         const std::byte* inputs) {
  driver().check(driver().copy_to_device(inputs_.address(), inputs, layout.bytes, stream_.get()), "copying inputs");
  for (std::size_t i = 0; i < addresses_.size(); ++i) {
    const PlanTensor& tensor = plan_.tensors[i];
    if (tensor.kind != TensorKind::kInput) continue;
    const auto input = static_cast<std::size_t>(step_input_index(tensor.name));
    addresses_[i] = inputs_.address() + layout.offsets[input];
  }
  programs_.enqueue(program, ProgramPart::kWhole, step, addresses_, stream_.get());
}

}  // namespace tl::cuda
