#include "state.h"

namespace emulated {

Block& block_of(Block& from, u32& address) {
  const u32 rank = address >> kRankShift;
  if (rank == 0) return from;
  address &= (1u << kRankShift) - 1;
  return *from.cluster->blocks.at(rank - 1);
}

char* checked(Block& from, u32 address, u32 bytes, const char* what) {
  const u32 given = address, size = machine->config->shared_bytes;
  Block& block = block_of(from, address);
  if (block.storage == nullptr) fail("%s: 0x%x is of a block that has ended", what, given);
  if (address < kSharedBase || address - kSharedBase > size || bytes > size - (address - kSharedBase)) {
    fail("%s: %u bytes at 0x%x are outside of the %u bytes of shared memory at 0x%x", what, bytes, given, size,
         kSharedBase);
  }
  return block.memory + (address - kSharedBase);
}

char* shared(u32 address, u32 bytes, const char* what) { return checked(my_block(), address, bytes, what); }

u32 shared_address(const void* pointer) {
  const std::ptrdiff_t offset = static_cast<const char*>(pointer) - my_block().memory;
  if (offset < 0 || offset > machine->config->shared_bytes) fail("%p is not in shared memory", pointer);
  return static_cast<u32>(offset) + kSharedBase;
}

char* dynamic_shared_begin() { return my_block().memory; }
u32 map_to_block(u32 address, u32 rank) { return address | (rank + 1) << kRankShift; }
u32 rank_in_cluster() { return my_block().rank; }

void check_global(const void* pointer, u64 bytes, const char* what) {
  const LaunchConfig& config = *machine->config;
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  for (u32 i = 0; i < config.num_ranges; ++i) {
    const auto from = reinterpret_cast<std::uintptr_t>(config.ranges[i].begin);
    if (begin >= from && begin + bytes <= from + config.ranges[i].bytes) return;
  }
  fail("%s: %llu bytes at %p are not in one of the kernel's tensors", what, bytes, pointer);
}

}  // namespace emulated
