// A multiprocessor on the CPU, for kernels compiled by the host's compiler: every CUDA thread is a fiber, and warps
// take turns in a random order that a seed decides.
//
// What the hardware may do at any time is done late, early or in between, at random: copies land and wgmma computes
// long after they were issued. Until then their targets hold NaNs, as all of shared memory does at first, so that a
// missing wait shows. What the hardware leaves undefined is an error where it can be told: lanes that meet in different
// instructions, arrivals that nobody counted, copies out of bounds, a deadlock.
//
// Kernels of several streams run side by side, as those of several GPUs that reach each other's memory do, each at a
// pace of its own.
//
// Not modelled: the order of memory accesses (everything is sequentially consistent, fences do nothing), registers.
#pragma once

#include <cstddef>
#include <functional>

namespace emulated {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Index {
  u32 x, y, z;
};

struct Place {
  Index thread, block, block_size, grid_size;
};

extern Place* here;  // of the running thread
constexpr int kLanes = 32;
constexpr u32 kAllLanes = 0xffffffff;

// Ends the launch with a message that begins with the running thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// `bytes` at an address of shared memory, of this block or, as map_to_block() gives it, of another of the cluster.
char* shared(u32 address, u32 bytes, const char* what);
u32 shared_address(const void* pointer);
char* dynamic_shared_begin();
// A variable of the kernel's own, at the same address in all blocks; `variable` is any address that tells it from
// others.
char* static_shared(const void* variable, u32 bytes, u32 alignment);
u32 map_to_block(u32 address, u32 rank);
u32 rank_in_cluster();
// Memory of the launch's tensors.
void check_global(const void* pointer, u64 bytes, const char* what);

// Lanes of a warp: the last of them to call this calls act() with all lanes' `mine`, before any returns.
void meet(const char* what, void* mine, void (*act)(void* const* lanes));
// Others may run now, for a while.
void pause();
// In a loop that waits for another thread of this GPU: time passes.
void look();
// How often the machine has let a warp go on: its clock.
u64 turns_so_far();

// Words of a tensor that other streams read or write at the same time: they are stored one by one, in any order, and
// others may run between any two; and loaded as they are after others have run.
void store_words(void* to, const u32* words, u32 count, const char* what);
void load_words(u32* words, const void* from, u32 count, const char* what);

// Named barriers of the block (bar.sync, bar.arrive) and the barrier of the cluster.
void barrier_sync(u32 id, u32 threads);
void barrier_arrive(u32 id, u32 threads);
void cluster_arrive();
void cluster_wait();

// mbarrier objects in shared memory.
void mbarrier_init(u32 address, u32 arrivals);
void mbarrier_arrive(u32 address, u32 expected_bytes);
bool mbarrier_wait(u32 address, u32 parity);  // returns when that phase is over

// Copies by the copy engine, which complete on an mbarrier.
void copy_bulk(u32 target, const void* source, u32 bytes, u32 barrier);
void store_async(u32 target, const void* values, u32 bytes, u32 barrier);  // at most 16, to a block of the cluster
// A matrix as the copy engine reads it, in place of what the driver encodes: rows of 128-byte boxes.
struct Matrix {
  const char* data;
  u64 rows, columns;
  u32 item_bytes, box_rows;
};
// A box of a matrix from `row` and `column` on lands at `target` in the 128-byte swizzle, in each block of the cluster
// whose bit `blocks` has, and counts on `barrier` there; what the matrix lacks lands as zeros.
void copy_box(u32 target, const Matrix& matrix, int row, int column, u32 barrier, u32 blocks);
// Copies by a thread, in groups: `bytes` of `source`, then zeros up to 16.
void copy_async(u32 target, const void* source, u32 bytes);
void copy_commit();
void copy_wait(u32 groups_under_way);
void copy_arrive(u32 barrier);  // when this thread's copies so far have landed; an arrival that was counted

// Work of a warp's tensor cores, done in order, in groups; from within meet() only.
void issue(std::function<void()> work);
void issue_commit();
void issue_wait(u32 groups_under_way);

struct Range {
  const void* begin;
  u64 bytes;
};

// One launch of a kernel, whose blocks begin when those of the launch before it in its stream have ended.
struct Launch {
  void (*kernel)(void* const* arguments);  // as one thread runs it
  void* const* arguments;                  // a pointer to each, as for cuLaunchKernel
  const Range* ranges;                     // memory that the kernel may copy from
  Index grid, block;
  u32 shared_bytes, cluster, resident_blocks, num_ranges, stream;
};

}  // namespace emulated

// Runs launches of the streams 0, 1 …, each stream's in their order. Returns false with the reason in `message` if one
// has failed.
extern "C" bool emulated_run(const emulated::Launch* launches, emulated::u32 num_launches, emulated::u64 seed,
                             char* message, emulated::u32 message_bytes);
