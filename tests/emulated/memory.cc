#include <algorithm>

#include "state.h"

namespace emulated {

Block& block_of(Block& from, u32& address) {
  const u32 rank = address >> kRankShift;
  if (rank == 0) return from;
  address &= (1u << kRankShift) - 1;
  return *from.cluster->blocks.at(rank - 1);
}

bool lies_in(std::ptrdiff_t offset, u32 bytes, u32 begin, u32 size) {
  return offset >= begin && offset + bytes <= static_cast<std::ptrdiff_t>(begin) + size;
}

bool is_shared(const Block& block, std::ptrdiff_t offset, u32 bytes) {
  const u32 size = block.launch->shared_bytes;
  return lies_in(offset, bytes, 0, size) || lies_in(offset, bytes, size + kGuardBytes, kStaticBytes);
}

char* checked(Block& from, u32 address, u32 bytes, const char* what) {
  const u32 given = address;
  Block& block = block_of(from, address);
  if (block.storage == nullptr) fail("%s: 0x%x is of a block that has ended", what, given);
  const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(address) - kSharedBase;
  if (!is_shared(block, offset, bytes)) {
    fail("%s: %u bytes at 0x%x are outside of the %u bytes of shared memory at 0x%x", what, bytes, given,
         block.launch->shared_bytes, kSharedBase);
  }
  return block.memory + offset;
}

char* shared(u32 address, u32 bytes, const char* what) { return checked(my_block(), address, bytes, what); }

u32 shared_address(const void* pointer) {
  const std::ptrdiff_t offset = static_cast<const char*>(pointer) - my_block().memory;
  if (!is_shared(my_block(), offset, 0)) fail("%p is not in shared memory", pointer);
  return static_cast<u32>(offset) + kSharedBase;
}

char* dynamic_shared_begin() { return my_block().memory; }

char* static_shared(const void* variable, u32 bytes, u32 alignment) {
  const auto [place, is_new] = machine->statics.try_emplace(variable, 0);
  if (is_new) {
    place->second = (machine->statics_end + alignment - 1) / alignment * alignment;
    machine->statics_end = place->second + bytes;
    if (machine->statics_end > kStaticBytes)
      fail("the kernels' own shared variables take more than %u bytes", kStaticBytes);
  }
  return my_block().memory + my_block().launch->shared_bytes + kGuardBytes + place->second;
}

u32 map_to_block(u32 address, u32 rank) { return address | (rank + 1) << kRankShift; }
u32 rank_in_cluster() { return my_block().rank; }

void check_global(const void* pointer, u64 bytes, const char* what) {
  const Launch& launch = *my_block().launch;
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  for (u32 i = 0; i < launch.num_ranges; ++i) {
    const auto from = reinterpret_cast<std::uintptr_t>(launch.ranges[i].begin);
    if (begin >= from && begin + bytes <= from + launch.ranges[i].bytes) return;
  }
  fail("%s: %llu bytes at %p are not in one of the kernel's tensors", what, bytes, pointer);
}

void store_words(void* to, const u32* words, u32 count, const char* what) {
  check_global(to, 4 * count, what);
  const std::size_t first = machine->pick(count);
  for (u32 i = 0; i < count; ++i) {
    const std::size_t word = (first + i) % count;
    pause();
    static_cast<u32*>(to)[word] = words[word];
  }
}

void load_words(u32* words, const void* from, u32 count, const char* what) {
  check_global(from, 4 * count, what);
  pause();
  std::copy_n(static_cast<const u32*>(from), count, words);
}

}  // namespace emulated
