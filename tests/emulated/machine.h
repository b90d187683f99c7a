// A multiprocessor on the CPU, for kernels compiled by the host's compiler: every CUDA thread is a fiber, and warps
// take turns in a random order that a seed decides.
//
// What the hardware may do at any time happens at a random time: copies land and wgmma computes long after they were
// issued. Until then their targets hold NaNs, which also fill shared memory at the start, so that a missing wait shows.
// What the hardware leaves undefined is an error where the machine can detect it: lanes that meet in different
// instructions, arrivals that no barrier counts, copies out of bounds, a deadlock.
//
// Kernels of several streams run side by side, each at its own pace, like kernels of several GPUs that reach each
// other's memory.
//
// Not modelled: the order of memory accesses (everything is sequentially consistent, fences do nothing), registers.
#pragma once

#include <cstddef>

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

extern Place* here;  // the place of the running thread
constexpr int kLanes = 32;
constexpr u32 kAllLanes = 0xffffffff;

// Ends the launch with a message that begins with the running thread.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Returns the host's address of `bytes` at an address of shared memory, which is in this block or, after
// map_to_block(), in another block of the cluster.
char* shared(u32 address, u32 bytes, const char* what);
u32 shared_address(const void* pointer);
char* dynamic_shared_begin();
// Returns the memory of a __shared__ variable, which has the same address in all blocks; `variable` is any address that
// tells this variable from others.
char* static_shared(const void* variable, u32 bytes, u32 alignment);
u32 map_to_block(u32 address, u32 rank);
u32 rank_in_cluster();
// Fails unless the bytes lie in the launch's tensors.
void check_global(const void* pointer, u64 bytes, const char* what);

// Waits until all lanes of the warp have called this function. The last one calls act() with all lanes' `mine` before
// any lane returns.
void meet(const char* what, void* mine, void (*act)(void* const* lanes));
// Lets other threads run for a while.
void pause();
// Lets time pass; called in a loop that polls for another thread of this GPU.
void look();
// Returns how many turns the machine has given to warps: its clock.
u64 turns_so_far();

// Stores and loads words of a tensor that other streams access at the same time. Words are stored one by one in a
// random order, and other threads may run between any two; they are loaded after other threads have run.
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
bool mbarrier_wait(u32 address, u32 parity);  // returns when the phase of that parity is over

// Asynchronous bulk copies and stores, which complete on an mbarrier.
void copy_bulk(u32 target, const void* source, u32 bytes, u32 barrier);
void store_async(u32 target, const void* values, u32 bytes, u32 barrier);  // at most 16 bytes, to any block
// A matrix for the copy engine, in place of the driver's tensor map; it is read in boxes with rows of 128 bytes.
struct Matrix {
  const char* data;
  u64 rows, columns;
  u32 item_bytes, box_rows;
};
// Copies a box of a matrix, which begins at `row` and `column`, to `target` in the 128-byte swizzle, and counts its
// bytes on `barrier`, both in each block of the cluster that has a bit in `blocks`. Elements outside of the matrix
// become zeros.
void copy_box(u32 target, const Matrix& matrix, int row, int column, u32 barrier, u32 blocks);
// cp.async of a thread: copies `bytes` of `source`, then zeros up to 16 bytes; a commit closes a group of copies.
void copy_async(u32 target, const void* source, u32 bytes);
void copy_commit();
void copy_wait(u32 groups_under_way);
// Arrives when this thread's copies so far have landed; `barrier` counts this as one of its expected arrivals.
void copy_arrive(u32 barrier);

// Groups of the asynchronous work of a warp's tensor cores (state.h); called from within meet() only.
void issue_commit();
void issue_wait(u32 groups_under_way);

struct Range {
  const void* begin;
  u64 bytes;
};

// One launch of a kernel. Its blocks begin when the blocks of the previous launch in its stream have ended.
struct Launch {
  void (*kernel)(void* const* arguments);  // runs one thread
  void* const* arguments;                  // a pointer to each argument, as for cuLaunchKernel
  const Range* ranges;                     // memory that the kernel may copy from
  Index grid, block;
  u32 shared_bytes, cluster, resident_blocks, num_ranges, stream;
};

}  // namespace emulated

// Runs launches of the streams 0, 1 …, each stream's in their order. Returns false if a launch has failed, with the
// reason in `message`.
extern "C" bool emulated_run(const emulated::Launch* launches, emulated::u32 num_launches, emulated::u64 seed,
                             char* message, emulated::u32 message_bytes);
