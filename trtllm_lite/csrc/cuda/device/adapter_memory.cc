#include "cuda/device/adapter_memory.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "engine/checks/plan_check.h"
#include "errors.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // copying one piece to the device takes a tenth of a
                                                           // millisecond
constexpr std::int64_t kRankMultiple = 8;                  // kernels read this many columns at once

std::size_t slot_bytes_of(const Plan& plan) {
  return static_cast<std::size_t>(plan.symbols[Symbol::kAdapterStride] * kAdapterUnit);
}

// The number of slabs for which `own_bytes` suffice.
int own_slabs(const MappedMemory& memory, std::size_t own_bytes) {
  if (memory.num_slabs() == 0 || own_bytes >= memory.size()) return memory.num_slabs();
  return static_cast<int>(own_bytes / memory.slab_bytes());
}

// Bytes of one row of a tensor [slots, rows, columns] of 16-bit elements.
std::size_t row_bytes(const PlanTensor& slots) { return static_cast<std::size_t>(slots.shape[2].value) * 2; }

}  // namespace

AdapterMemory::AdapterMemory(const Device& device, const Plan& plan, int num_slots, std::size_t own_bytes)
    : device_(device),
      plan_(plan),
      shapes_(low_rank_shapes(plan)),
      num_slots_(num_slots),
      slot_bytes_(slot_bytes_of(plan)),
      memory_(device, static_cast<std::size_t>(num_slots) * slot_bytes_, MappedMemory::Tail::kSlab,
              "adapters in " + std::to_string(num_slots) + " slots",
              "lower max_loras, or build the engine with a smaller --max_lora_rank"),
      num_own_(own_slabs(memory_, own_bytes)),
      is_filled_(static_cast<std::size_t>(num_slots)) {
  for (const AdaptedProduct& product : plan.cuda->adapted) {
    for (const int matrix : {product.a, product.b}) {
      if (row_bytes(plan.tensors[static_cast<std::size_t>(matrix)]) <= kPieceBytes) continue;
      throw LimitError(
          "adapters: expected matrices with rows of at most 4 MiB, found longer ones; build the engine "
          "without --max_lora_rank");
    }
  }
  if (memory_.size() == 0) return;
  for (int i = 0; i < num_own_; ++i) {
    std::optional<Slab> memory = Slab::allocate(device_, memory_.slab_bytes());
    if (!memory) memory_.throw_out_of_memory();
    add(std::move(*memory));
  }
  stream_ = make_stream();
  for (Piece& piece : pieces_) {
    piece = {PinnedBuffer(kPieceBytes, "copies of adapters", "free host memory"), make_event()};
  }
}

DevicePtr AdapterMemory::place(int tensor, int slot) const {
  return address(static_cast<std::size_t>(tensor)) + static_cast<DevicePtr>(slot) * slot_bytes_;
}

std::pair<int, int> AdapterMemory::slabs_of(int slot) const {
  const std::size_t begin = static_cast<std::size_t>(slot) * slot_bytes_, end = begin + slot_bytes_;
  return {static_cast<int>(begin / memory_.slab_bytes()), static_cast<int>((end - 1) / memory_.slab_bytes()) + 1};
}

bool AdapterMemory::is_used(int slab) const {
  for (int slot = 0; slot < num_slots_; ++slot) {
    const auto [first, end] = slabs_of(slot);
    if (is_filled_[static_cast<std::size_t>(slot)] && first <= slab && slab < end) return true;
  }
  return false;
}

void AdapterMemory::check_slot(int slot) const {
  if (slot >= 0 && slot < num_slots_) return;
  throw LimitError("slot of an adapter: expected 0 to " + std::to_string(num_slots_ - 1) + ", found " +
                   std::to_string(slot) + "; raise max_loras");
}

int AdapterMemory::num_missing(int slot) const {
  check_slot(slot);
  const auto [first, end] = slabs_of(slot);
  int num_missing = 0, num_unused = static_cast<int>(spare_.size());
  for (int slab = 0; slab < memory_.num_slabs(); ++slab) {
    const bool is_wanted = slab >= first && slab < end;
    num_missing += is_wanted && !memory_.is_mapped(slab);
    num_unused += !is_wanted && memory_.is_mapped(slab) && !is_used(slab);
  }
  return std::max(num_missing - num_unused, 0);
}

void AdapterMemory::add(Slab memory) {
  spare_.push_back(std::move(memory));
  num_spare_ = spare_.size();
}

std::optional<Slab> AdapterMemory::take_unused() {
  std::optional<Slab> found;
  if (!spare_.empty()) {
    found = std::move(spare_.back());
    spare_.pop_back();
    num_spare_ = spare_.size();
  }
  for (int slab = 0; !found && slab < memory_.num_slabs(); ++slab) {
    if (memory_.is_mapped(slab) && !is_used(slab)) found = memory_.unmap(slab);
  }
  return found;
}

void AdapterMemory::empty(int slot) {
  check_slot(slot);
  is_filled_[static_cast<std::size_t>(slot)] = false;
}

void AdapterMemory::prepare(int slot) {
  is_filled_[static_cast<std::size_t>(slot)] = true;  // its memory is not unused
  for (auto [slab, end] = slabs_of(slot); slab < end; ++slab) {
    if (memory_.is_mapped(slab)) continue;
    std::optional<Slab> memory = take_unused();
    if (!memory) throw std::logic_error("slot " + std::to_string(slot) + " of an adapter lacks memory");
    try {
      memory_.map(slab, *memory);
    } catch (...) {
      add(std::move(*memory));
      throw;
    }
  }
}

AdapterMemory::Piece& AdapterMemory::next_piece() {
  Piece& piece = pieces_[turn_];
  turn_ = (turn_ + 1) % pieces_.size();
  if (piece.in_use) driver().check(driver().event_synchronize(piece.read.get()), "copying an adapter");
  return piece;
}

void AdapterMemory::copy(const Rows& rows, std::int64_t first, std::int64_t count, std::size_t row_bytes,
                         std::byte* to) {
  const auto found = static_cast<std::size_t>(std::clamp(rows.num_rows - first, std::int64_t{0}, count));
  const std::byte* from = rows.data + static_cast<std::size_t>(first) * rows.row_bytes;
  if (rows.row_bytes == row_bytes) {
    std::memcpy(to, from, found * row_bytes);
  } else {
    for (std::size_t i = 0; i < found; ++i) {
      std::memcpy(to + i * row_bytes, from + i * rows.row_bytes, rows.row_bytes);
      std::memset(to + i * row_bytes + rows.row_bytes, 0, row_bytes - rows.row_bytes);
    }
  }
  std::memset(to + found * row_bytes, 0, (static_cast<std::size_t>(count) - found) * row_bytes);
}

void AdapterMemory::send(DevicePtr to, std::int64_t num_rows, std::size_t row_bytes, const Rows& rows) {
  const auto rows_at_once = static_cast<std::int64_t>(kPieceBytes / row_bytes);
  for (std::int64_t first = 0; first < num_rows; first += rows_at_once) {
    const std::int64_t count = std::min(rows_at_once, num_rows - first);
    Piece& piece = next_piece();
    copy(rows, first, count, row_bytes, piece.memory.data());
    const std::size_t bytes = static_cast<std::size_t>(count) * row_bytes;
    driver().check(driver().copy_to_device(to + static_cast<std::size_t>(first) * row_bytes, piece.memory.data(), bytes,
                                           stream_.get()),
                   "copying an adapter");
    driver().check(driver().event_record(piece.read.get(), stream_.get()), "copying an adapter");
    piece.in_use = true;
  }
}

void AdapterMemory::clear(DevicePtr address, std::size_t bytes) {
  driver().check(driver().fill_bytes(address, 0, bytes, stream_.get()), "clearing memory");
  driver().check(driver().stream_synchronize(stream_.get()), "clearing memory");
}

void AdapterMemory::fill(int slot, const Adapter& adapter) {
  check_slot(slot);
  adapter.check_made_for(shapes_);
  const std::lock_guard lock(filling_);
  device_.make_current();
  prepare(slot);
  const HalfPart* parts = adapter.half_parts();
  for (const AdaptedProduct& product : plan_.cuda->adapted) {
    fill_product(slot, product, parts);
    parts += product.widths.size();
  }
  driver().check(driver().stream_synchronize(stream_.get()), "copying an adapter");
}

void AdapterMemory::fill_product(int slot, const AdaptedProduct& product, const HalfPart* parts) {
  const PlanTensor &a = plan_.tensors[static_cast<std::size_t>(product.a)],
                   &b = plan_.tensors[static_cast<std::size_t>(product.b)];
  const std::int64_t max_rank = b.shape[2].value;
  const std::size_t a_bytes = row_bytes(a), b_bytes = row_bytes(b);
  std::vector<std::int32_t> ranks;
  DevicePtr to_a = place(product.a, slot), to_b = place(product.b, slot);
  for (std::size_t i = 0; i < product.widths.size(); ++i) {
    const HalfPart& part = parts[i];
    const std::int64_t width = product.widths[i];
    const std::int64_t padded = (part.rank + kRankMultiple - 1) / kRankMultiple * kRankMultiple;
    ranks.push_back(static_cast<std::int32_t>(padded));
    send(to_a, padded, a_bytes, {part.a, part.rank, a_bytes});
    send(to_b, padded == 0 ? 0 : width, b_bytes, {part.b, width, static_cast<std::size_t>(part.rank) * 2});
    to_a += static_cast<std::size_t>(max_rank) * a_bytes;
    to_b += static_cast<std::size_t>(width) * b_bytes;
  }
  const std::size_t bytes = ranks.size() * sizeof(std::int32_t);
  send(place(product.ranks, slot), 1, bytes, {reinterpret_cast<const std::byte*>(ranks.data()), 1, bytes});
}

}  // namespace tl::cuda
