#include "cuda/device/adapter_memory.h"

#include <algorithm>
#include <cstring>

#include "engine/checks/plan_check.h"
#include "errors.h"

namespace tl::cuda {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // copying one piece to the device takes a tenth of a
                                                           // millisecond
constexpr std::int64_t kRankMultiple = 8;                  // kernels read this many columns at once

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Bytes of one row of a tensor [slots, rows, columns] of 16-bit elements.
std::size_t row_bytes(const PlanTensor& slots) { return static_cast<std::size_t>(slots.shape[2].value) * 2; }

}  // namespace

AdapterMemory::AdapterMemory(const Device& device, const Plan& plan, int num_slots)
    : device_(device), plan_(plan), shapes_(low_rank_shapes(plan)), num_slots_(num_slots) {
  std::size_t total = 0;
  for (const PlanTensor& tensor : plan.tensors) {
    offsets_.push_back(total);
    if (tensor.kind != TensorKind::kAdapter) continue;
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::size_t>(max_bytes(plan, tensor)), num_slots, &bytes) ||
        __builtin_add_overflow(total, round_up(bytes, kAlignment), &total)) {
      throw LimitError("adapters: expected slots that fit in memory, found more than 2^64 bytes; lower max_loras");
    }
  }
  for (const AdaptedProduct& product : plan.cuda->adapted) {
    for (const int matrix : {product.a, product.b}) {
      if (row_bytes(plan.tensors[static_cast<std::size_t>(matrix)]) <= kPieceBytes) continue;
      throw LimitError(
          "adapters: expected matrices with rows of at most 4 MiB, found longer ones; build the engine "
          "without --max_lora_rank");
    }
  }
  memory_ = DeviceBuffer(device, total, "adapters in " + std::to_string(num_slots) + " slots",
                         "lower max_loras, or build the engine with a smaller --max_lora_rank");
  if (total == 0) return;
  stream_ = make_stream();
  for (Piece& piece : pieces_) {
    piece = {PinnedBuffer(kPieceBytes, "copies of adapters", "free host memory"), make_event()};
  }
}

DevicePtr AdapterMemory::place(int tensor, int slot) const {
  const auto index = static_cast<std::size_t>(tensor);
  return address(index) + static_cast<DevicePtr>(slot) * static_cast<DevicePtr>(max_bytes(plan_, plan_.tensors[index]));
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

void AdapterMemory::fill(int slot, const Adapter& adapter) {
  if (slot < 0 || slot >= num_slots_) {
    throw LimitError("slot of an adapter: expected 0 to " + std::to_string(num_slots_ - 1) + ", found " +
                     std::to_string(slot) + "; raise max_loras");
  }
  adapter.check_made_for(shapes_);
  const std::lock_guard lock(filling_);
  device_.make_current();
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
