// Computes heads of sequences, one after the other: of each block those that are gridDim.x apart; see
// cuda/replay_tokens.cuh.
//
// The state of the next head, and of that after it, is copied meanwhile: so few blocks use all the bandwidth. In a turn
// kReplayThreads threads compute a head; kTokenThreads prepare the chunk of the next one, which does not depend on the
// matrix. The last warp of these also requests copies.
#pragma once

#include "cuda/replay_columns.cuh"

namespace tl {

constexpr int kTokenThreads = 128, kTokenWarps = kTokenThreads / 32;
static_assert(TL_THREADS == kReplayThreads + kTokenThreads);
static_assert(TL_KEY_DIM == kRows && TL_VALUE_DIM == kColumns && kBlocks == 1 && kTailAt % 4 == 0);

// A head of a sequence, and its new tokens, of which there may be none.
struct Item {
  StateSpan span;
  int head;

  // Whether it has tokens that are computed here: another kernel computes those of long sequences.
  __device__ __forceinline__ bool is_computed() const { return span.count > 0 && !has_chunks(span); }
  __device__ __forceinline__ bool is_stored() const { return is_computed() && span.past > 0; }
  __device__ __forceinline__ float* state(const StatePlaces& places) const {
    return places.state(span.block) + head * kStateSize;
  }
  __device__ __forceinline__ int likely_length() const { return ReplayState::likely_length(span); }
  // The chunk that likely is the first, of the tokens that are computed.
  __device__ __forceinline__ ChunkSpan first_tokens() const {
    const StateSpan computed = is_computed() ? span : StateSpan{0, 0, 0, -1};
    return ChunkSpan(ReplayState(nullptr, computed, 0.0f), computed, ReplayState::likely_length(computed));
  }
};

// Item number `number` of `count`.
__device__ __forceinline__ Item item_of(const StatePlaces& places, int number, int count, int num_heads) {
  if (number >= count) return {{0, 0, 0, -1}, 0};
  return {places.of(number / num_heads), number % num_heads};
}

// What is copied of an item.
struct Prefetched {
  uint4 matrix[kMatrixPieces];
  Chunk chunk;
};
constexpr int kBarrierBytes = 16;  // of the matrix, and of the chunk
static_assert(2 * (sizeof(Prefetched) + kBarrierBytes) == TL_SHARED_BYTES);

// Requests what states of items have, by a warp; `full` completes when it is there.
struct Prefetcher {
  const StatePlaces& places;
  int lane;

  __device__ __forceinline__ void request_matrix(Prefetched& to, const Item& item, u32 full) const {
    if (copying_lane()) {
      expect_bytes(full, item.is_stored() ? sizeof(to.matrix) : 0);
      if (item.is_stored()) copy_bytes(shared_address(to.matrix), item.state(places), sizeof(to.matrix), full, lane);
    }
    stage_commit(full);
  }
  // Requests the tokens that likely are behind the matrix, and the last words. Tokens that follow each other do so in
  // the state, too, but for those from slot 0 on.
  __device__ __forceinline__ void request_tokens(Prefetched& to, const Item& item, u32 full) const {
    if (copying_lane()) {
      const int base = ReplayState::likely_length(item.span), count = item.span.past - base;
      const int before = min_of(count, kSlots - base % kSlots), bytes = 4 * count * (TL_KEY_DIM + TL_VALUE_DIM);
      const int of_decays = kDecaysByRow ? 4 * count * TL_DECAY_DIM : 0;
      expect_bytes(full, item.is_stored() ? bytes + of_decays + 16 * kTailPieces : 0);
      if (item.is_stored()) {
        const ReplayState state(item.state(places), item.span, 0.0f);
        const auto copy = [&](float* target, const float* source, int size, int tokens) {
          if (tokens > 0) copy_bytes(shared_address(target), source, 4 * size * tokens, full, lane);
        };
        copy(to.chunk.key(0), state.key(base), TL_KEY_DIM, before);
        copy(to.chunk.key(before), state.key(base + before), TL_KEY_DIM, count - before);
        copy(to.chunk.updates(0), state.update(base), TL_VALUE_DIM, before);
        copy(to.chunk.updates(before), state.update(base + before), TL_VALUE_DIM, count - before);
        if constexpr (kDecaysByRow) {
          copy(to.chunk.decays(0), state.decay(base), TL_DECAY_DIM, before);
          copy(to.chunk.decays(before), state.decay(base + before), TL_DECAY_DIM, count - before);
        }
        copy_bytes(shared_address(to.chunk.tail_quads), state.state + kTailAt, 16 * kTailPieces, full, lane);
      }
    }
    stage_commit(full);
  }
};

// The copying warp waits until the matrix of a turn is in registers.
__device__ __forceinline__ void matrix_is_read() {
  asm volatile("bar.arrive 2, %0;" ::"n"(kReplayThreads + 32) : "memory");
}
__device__ __forceinline__ void wait_until_matrix_is_read() {
  asm volatile("bar.sync 2, %0;" ::"n"(kReplayThreads + 32) : "memory");
}

// A block's turns: in each it computes an item.
struct Walk {
  const StatePlaces& places;
  Prefetched* prefetched;  // of two turns
  Item* items;             // of this turn and the next three
  u32 barriers;            // of each state that of its matrix, and of its chunk
  int count, num_heads;    // of items

  __device__ __forceinline__ bool has(int turn) const { return blockIdx.x + turn * gridDim.x < count; }
  __device__ __forceinline__ Item read_item(int turn) const {
    return item_of(places, blockIdx.x + turn * gridDim.x, count, num_heads);
  }
  __device__ __forceinline__ Item& item(int turn) const { return items[turn % 4]; }
  __device__ __forceinline__ Prefetched& of(int turn) const { return prefetched[turn % 2]; }
  __device__ __forceinline__ u32 full_matrix(int turn) const { return barriers + turn % 2 * kBarrierBytes; }
  __device__ __forceinline__ u32 full_chunk(int turn) const { return full_matrix(turn) + 8; }
  static __device__ __forceinline__ u32 parity(int turn) { return turn / 2 % 2; }
  // All have finished with the chunk of a turn, and the next one is prepared.
  static __device__ __forceinline__ void end_turn() {
    fence_async_copies();
    __syncthreads();
  }
};

// A warp that prepares chunks, and perhaps the one that copies.
template <typename MakeOperands>
struct TokenWarp {
  const Walk& walk;
  const MakeOperands& operands_of;
  int thread;  // of kTokenThreads
  bool copies;
  __device__ __forceinline__ int warp() const { return thread / 32; }
  __device__ __forceinline__ bool has_part(const ChunkSpan& tokens) const {
    return warp() < kTokenParts * (tokens.count - tokens.first);
  }
  // Requests what the warp has of the new tokens of a turn, for prepare().
  __device__ __forceinline__ TokenPart request(int turn) const {
    const Item item = walk.item(turn);
    const ChunkSpan tokens = item.first_tokens();
    TokenPart part = {};
    if (has_part(tokens))
      part.request(operands_of(item.head), tokens.row + warp() / kTokenParts, warp() % kTokenParts, 0);
    return part;
  }
  __device__ __forceinline__ void prepare(int turn, const TokenPart& part) const {
    Chunk& chunk = walk.of(turn).chunk;
    const Item item = walk.item(turn);
    const auto from = operands_of(item.head);
    const ChunkSpan tokens = item.first_tokens();
    if (has_part(tokens)) part.store(chunk, from, tokens.first + warp() / kTokenParts, warp() % kTokenParts);
    load_new_tokens<kTokenWarps>(chunk, from, tokens, 0, kTokenWarps + warp());
    barrier_wait(walk.full_chunk(turn), Walk::parity(turn));
    if constexpr (!kDecaysByRow) {
      if (thread < tokens.first) *chunk.decays(thread) = chunk.decay_in_tail(item.likely_length() + thread);
    }
    asm volatile("bar.sync 3, %0;" ::"n"(kTokenThreads) : "memory");
    weigh_tokens<kTokenThreads>(chunk, tokens.first, tokens.count, thread);
  }
  __device__ __forceinline__ void run() const {
    const Prefetcher prefetcher{walk.places, thread % 32};
    TokenPart next = request(1);
    prepare(0, request(0));
    Walk::end_turn();
    for (int turn = 0; walk.has(turn); ++turn) {
      const TokenPart part = next;
      next = request(turn + 2);
      if (copies) {
        const Item later = walk.read_item(turn + 3);
        wait_until_matrix_is_read();
        prefetcher.request_matrix(walk.of(turn), walk.item(turn + 2), walk.full_matrix(turn));
        if (prefetcher.lane == 0) walk.item(turn + 3) = later;
      }
      prepare(turn + 1, part);
      Walk::end_turn();
      if (copies) prefetcher.request_tokens(walk.of(turn), walk.item(turn + 2), walk.full_chunk(turn));
    }
  }
};

template <typename MakeOperands>
__device__ __forceinline__ void compute_items(const Walk& walk, const MakeOperands& operands_of) {
  Walk::end_turn();
  for (int turn = 0; walk.has(turn); ++turn) {
    Prefetched& own = walk.of(turn);
    const Item item = walk.item(turn);
    Columns columns = {};
    barrier_wait(walk.full_matrix(turn), Walk::parity(turn));
    columns.for_each([&](int row, float (&elements)[4]) {
      const StateElement* const matrix = reinterpret_cast<const StateElement*>(own.matrix);
      load_quad(matrix + row * TL_VALUE_DIM + Columns::of_thread(), elements);
    });
    matrix_is_read();
    if (item.is_computed()) {
      const auto from = operands_of(item.head);
      ReplayState state(item.state(walk.places), item.span, item.is_stored() ? own.chunk.length_in_tail() : 0.0f);
      state.settle(item.span);
      const int base = run_columns(own.chunk, columns, from, state, item.span, 0, item.likely_length(), true);
      store_tokens(own.chunk, from, state, item.span, base);
    } else if (item.span.count > 0) {
      ReplayState state(item.state(walk.places), item.span);
      state.settle(item.span);
      store_tokens(own.chunk, operands_of(item.head), state, item.span, state.end);
    }
    Walk::end_turn();
  }
}

template <typename MakeOperands>
__device__ __forceinline__ void replay_tokens(const StatePlaces& places, int num_heads, int num_seqs,
                                              const MakeOperands& operands_of) {
  extern __shared__ __align__(128) char memory[];
  __shared__ Item items[4];
  Prefetched* const prefetched = reinterpret_cast<Prefetched*>(memory);
  const Walk walk{places, prefetched, items, shared_address(prefetched + 2), num_heads * num_seqs, num_heads};
  const int thread = static_cast<int>(threadIdx.x) - kReplayThreads, lane = threadIdx.x % 32;
  const bool copies = thread >= kTokenThreads - 32;
  if (copies) {
    if (lane < 4) barrier_init(walk.barriers + 8 * lane, kFullArrivals);
    barrier_init_fence();
    if (lane < 3) walk.item(lane) = walk.read_item(lane);
    __syncwarp();
    const Prefetcher prefetcher{places, lane};
    for (int turn = 0; turn < 2; ++turn) {
      prefetcher.request_matrix(walk.of(turn), walk.item(turn), walk.full_matrix(turn));
      prefetcher.request_tokens(walk.of(turn), walk.item(turn), walk.full_chunk(turn));
    }
  }
  __syncthreads();
  wait_for_previous_kernel();
  allow_next_kernel();
  if (thread >= 0) {
    TokenWarp<MakeOperands>{walk, operands_of, thread, copies}.run();
  } else {
    compute_items(walk, operands_of);
  }
}

}  // namespace tl
