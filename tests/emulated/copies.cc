#include <cstring>

#include "state.h"

namespace emulated {
namespace {

// Copies pieces of 16 bytes, each of which is either wholly in the matrix or wholly outside of it.
void land_box(const BulkCopy& copy, char* target) {
  const Matrix& matrix = *copy.matrix;
  for (u32 piece = 0; piece < copy.bytes / 16; ++piece) {
    const u64 row = static_cast<u64>(copy.row) + piece / 8;
    const u64 column = static_cast<u64>(copy.column) + piece % 8 * 16 / matrix.item_bytes;
    char* to = target + piece / 8 * 128 + (piece % 8 ^ (copy.target / 128 + piece / 8) % 8) * 16;
    if (row < matrix.rows && column < matrix.columns) {
      std::memcpy(to, matrix.data + (row * matrix.columns + column) * matrix.item_bytes, 16);
    } else {
      std::memset(to, 0, 16);
    }
  }
}

void land(const BulkCopy& copy) {
  char* target = checked(*copy.block, copy.target, copy.bytes, "bulk copy");
  if (copy.matrix != nullptr) {
    land_box(copy, target);
  } else {
    std::memcpy(target, copy.source == nullptr ? copy.sent.data() : copy.source, copy.bytes);
  }
  MBarrier& barrier = mbarrier_at(*copy.block, copy.barrier, "bulk copy");
  barrier.bytes -= copy.bytes;
  end_phase_if_complete(barrier);
}

void land(Block& block, const ThreadCopy& copy) {
  char* target = checked(block, copy.target, 16, "cp.async");
  std::memcpy(target, copy.source, copy.bytes);
  std::memset(target + copy.bytes, 0, 16 - copy.bytes);
}

}  // namespace

void land_any() {
  const std::size_t at = machine->pick(machine->copies.size());
  const BulkCopy copy = machine->copies[at];
  machine->copies[at] = machine->copies.back();
  machine->copies.pop_back();
  here = &copy.block->warps[0].lanes[0];  // the thread that a failure names
  land(copy);
}

void finish_work(Warp& warp, u32 end) {
  std::size_t done = 0;
  while (done < warp.work.size() && static_cast<int>(warp.work[done].group - end) < 0) warp.work[done++].run();
  warp.work.erase(warp.work.begin(), warp.work.begin() + done);
}

void copy_bulk(u32 target, const void* source, u32 bytes, u32 barrier) {
  const bool aligned = target % 16 == 0 && reinterpret_cast<std::uintptr_t>(source) % 16 == 0;
  if (!aligned || bytes % 16 != 0 || bytes == 0) {
    fail("bulk copy of %u bytes from %p to 0x%x, expected a multiple of 16 and aligned addresses", bytes, source,
         target);
  }
  check_global(source, bytes, "bulk copy");
  mbarrier_at(my_block(), barrier, "bulk copy");
  std::memset(shared(target, bytes, "bulk copy"), kPoison, bytes);
  machine->copies.push_back({&my_block(), target, bytes, barrier, source, {}});
}

void store_async(u32 target, const void* values, u32 bytes, u32 barrier) {
  Block& block = block_of(my_block(), target);  // the block that the addresses of target and barrier now refer to
  if (&block != &block_of(my_block(), barrier)) fail("st.async to 0x%x with a barrier of another block", target);
  if (target % bytes != 0)
    fail("st.async of %u bytes to 0x%x, expected an address that is a multiple of the size", bytes, target);
  mbarrier_at(block, barrier, "st.async");
  std::memset(checked(block, target, bytes, "st.async"), kPoison, bytes);
  BulkCopy copy{&block, target, bytes, barrier, nullptr, {}};
  std::memcpy(copy.sent.data(), values, bytes);
  machine->copies.push_back(copy);
}

void copy_box(u32 target, const Matrix& matrix, int row, int column, u32 barrier, u32 blocks) {
  const u32 bytes = matrix.box_rows * 128;
  const bool whole_pieces = matrix.columns * matrix.item_bytes % 16 == 0;
  if (target % 1024 != 0 || row < 0 || column < 0 || matrix.box_rows > 256 || !whole_pieces) {
    fail(
        "a box of %u rows from row %d and column %d to 0x%x, expected at most 256 rows of whole 16-byte pieces, no "
        "negative index, and a target at a multiple of 1024",
        matrix.box_rows, row, column, target);
  }
  check_global(matrix.data, matrix.rows * matrix.columns * matrix.item_bytes, "box");
  for (Block* block : my_block().cluster->blocks) {
    if ((blocks >> block->rank & 1) == 0) continue;
    mbarrier_at(*block, barrier, "box");
    std::memset(checked(*block, target, bytes, "box"), kPoison, bytes);
    machine->copies.push_back({block, target, bytes, barrier, nullptr, {}, &matrix, row, column});
  }
}

void copy_async(u32 target, const void* source, u32 bytes) {
  const bool aligned = target % 16 == 0 && reinterpret_cast<std::uintptr_t>(source) % 16 == 0;
  if (!aligned || bytes > 16) {
    fail("cp.async of %u bytes from %p to 0x%x, expected at most 16 bytes and aligned addresses", bytes, source,
         target);
  }
  if (bytes > 0) check_global(source, bytes, "cp.async");
  const ThreadCopy copy{target, bytes, me().copy_group, source};
  std::memset(shared(target, 16, "cp.async"), kPoison, 16);
  if (machine->chance(machine->eagerness)) {
    land(my_block(), copy);
  } else {
    me().copies.push_back(copy);
  }
}

void copy_commit() { ++me().copy_group; }

void copy_wait(u32 groups_under_way) {
  Fiber& thread = me();
  const u32 end = thread.copy_group - groups_under_way;
  std::erase_if(thread.copies, [&](const ThreadCopy& copy) {
    if (static_cast<int>(copy.group - end) >= 0) return false;
    land(my_block(), copy);
    return true;
  });
}

void copy_arrive(u32 barrier) {
  for (const ThreadCopy& copy : me().copies) land(my_block(), copy);
  me().copies.clear();
  mbarrier_arrive(barrier, 0);
}

void issue(std::function<void()> work) { me().warp->work.push_back({std::move(work), me().warp->work_group}); }
void issue_commit() { ++me().warp->work_group; }
void issue_wait(u32 groups_under_way) { finish_work(*me().warp, me().warp->work_group - groups_under_way); }

}  // namespace emulated
