// Computes chunks of tokens by tensor cores; see cuda/replay_rule.cuh.
//
// FLOPs of a token and head: about 6 * key_dim * value_dim, twice that on tensor cores. What bounds a long prompt is
// the latency of its chunks, which depend on each other through the matrix.
//
// Two warps have 16 columns of the matrix, half the rows each, as accumulators of m16n8k8 whose rows are the columns;
// so they are the left operand of the next product without being moved. The keys and queries of a chunk are the right
// operands: their 16 bits are exact as TF32, and norms and decays are applied to sums. A float32 left operand takes two
// products, of its upper bits and of the rest. Tokens behind the stored matrix have float32 keys, which are the sum of
// three of 16 bits.
//
// What does not depend on the matrix is prepared by warps of their own, each of which has a slot in shared memory and
// prepares every kChunkSlots-th chunk; so the updates of a chunk are a product, too. The other warps multiply.
#pragma once

#include "cuda/replay_chunk_slot.cuh"

namespace tl {

// A float32 left operand of m16n8k8: its upper bits, which are TF32, and the rest. `sums`: the accumulators that it
// was.
struct LeftOperand {
  u32 upper[4], rest[4];

  __device__ __forceinline__ explicit LeftOperand(const float (&sums)[4]) {
    const float ordered[4] = {sums[0], sums[2], sums[1], sums[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      upper[i] = __float_as_uint(ordered[i]) & kTf32Bits;
      rest[i] = __float_as_uint(ordered[i] - __uint_as_float(upper[i]));
    }
  }
  // c += the upper bits, or the rest, * b, for elements of 16 bits that follow each other, those of b's rows 2i and
  // 2i + 1. Successive products should have different sums: tensor cores take long for each.
  template <bool kUpper>
  __device__ __forceinline__ void multiply(float (&c)[4], u32 pair) const {
    const float2 b = unpack2(pair);
    mma_tf32(c, kUpper ? upper : rest, __float_as_uint(b.x), __float_as_uint(b.y));
  }
  // c += this * b for float32 elements.
  __device__ __forceinline__ void multiply(float (&c)[4], float2 b) const {
    const u32 x = __float_as_uint(b.x) & kTf32Bits, y = __float_as_uint(b.y) & kTf32Bits;
    mma_tf32(c, rest, x, y);
    mma_tf32(c, upper, __float_as_uint(b.x - __uint_as_float(x)), __float_as_uint(b.y - __uint_as_float(y)));
    mma_tf32(c, upper, x, y);
  }
};

// What two warps with the same columns tell each other of a chunk, in turns of two.
struct FoundParts {
  float4 parts[2][kColumnWarps][3][32];
};

// A warp's part of the matrix: 16 columns and half the rows. A lane has columns lane / 4 and + 8, and of the tokens of
// a chunk 2 * (lane % 4) and + 1, and 8 more. Both warps compute the chunk's updates; each computes results of 8
// tokens.
template <typename Operands>
struct ChunkColumns {
  static constexpr int kTokenTiles = 2 / kHalves;  // of 8 tokens whose results the warp computes

  const Operands& from;
  const ReplayState& state;
  FoundParts& found_parts;
  int first_row, column, group, half, lane;  // `column`: the lane's first
  float tiles[kKeyTiles][4];

  __device__ __forceinline__ int first_key() const { return half * kKeyTiles * 8; }
  __device__ __forceinline__ int token_tile(int n) const { return half * kTokenTiles + n; }
  // Calls use(row, column, element) for each element that the lane has.
  template <typename Use>
  __device__ __forceinline__ void for_each(const Use& use) {
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        use(first_key() + tile * 8 + lane % 4 * 2 + i % 2, column + i / 2 * 8, tiles[tile][i]);
    }
  }
  __device__ __forceinline__ void load() {
    const bool stored = state.length > 0;
    for_each([&](int row, int at, float& x) { x = stored ? state.element(row * TL_VALUE_DIM + at) : 0.0f; });
  }
  __device__ __forceinline__ void store() {
    for_each([&](int row, int at, float& x) { state.store_element(row * TL_VALUE_DIM + at, x); });
  }
  // What keys and queries find in the warp's part of the matrix.
  __device__ __forceinline__ void find(const ChunkSlot& slot, float (&keys)[2][4], float (&queries)[2][4]) const {
    const int token = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
      const int at = first_key() + pair * 16 + lane / 8 % 2 * 8;
      u32 key[4], query[4];
      if constexpr (Operands::kCorrects) load_matrix_x4(key, shared_address(&slot.keys[0][token][at]));
      load_matrix_x4(query, shared_address(&slot.queries[token][at]));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const LeftOperand left(tiles[pair * 2 + i]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (Operands::kCorrects) left.multiply<true>(keys[n], key[n * 2 + i]);
          left.multiply<true>(queries[n], query[n * 2 + i]);
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          if constexpr (Operands::kCorrects) left.multiply<false>(keys[n], key[n * 2 + i]);
          left.multiply<false>(queries[n], query[n * 2 + i]);
        }
      }
    }
  }
  // Adds what is found in the other half: for all keys, and for the queries whose results the warp computes.
  __device__ __forceinline__ void add_other_half(int number, float (&keys)[2][4], float (&queries)[2][4],
                                                 float (&results)[kTokenTiles][4]) const {
    if constexpr (kHalves == 1) {
#pragma unroll
      for (int i = 0; i < kTokenTiles * 4; ++i) results[i / 4][i % 4] = queries[i / 4][i % 4];
    } else {
      float4(&parts)[kColumnWarps][3][32] = found_parts.parts[number % 2];
      float4(&mine)[3][32] = parts[group * 2 + half], (&others)[3][32] = parts[group * 2 + (half ^ 1)];
      float given[4], own[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        given[i] = half == 0 ? queries[1][i] : queries[0][i];
        own[i] = half == 0 ? queries[0][i] : queries[1][i];
      }
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) mine[n][lane] = make_float4(keys[n][0], keys[n][1], keys[n][2], keys[n][3]);
      }
      mine[2][lane] = make_float4(given[0], given[1], given[2], given[3]);
      asm volatile("bar.sync %0, 64;" ::"r"(1 + group) : "memory");
      // The order of a sum of two numbers does not matter: both warps get the same bits.
      if constexpr (Operands::kCorrects) {
#pragma unroll
        for (int n = 0; n < 2; ++n) add(keys[n], keys[n], others[n][lane]);
      }
      add(results[0], own, others[2][lane]);
    }
  }
  static __device__ __forceinline__ void add(float (&sums)[4], const float (&a)[4], float4 b) {
    sums[0] = a[0] + b.x, sums[1] = a[1] + b.y, sums[2] = a[2] + b.z, sums[3] = a[3] + b.w;
  }
  // Computes the updates of the chunk's tokens from what their keys find.
  __device__ __forceinline__ void solve(const ChunkSlot& slot, const float2 (&values)[2][2], int base, int first,
                                        const float (&keys)[2][4], float (&updates)[2][4]) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = n * 8 + lane % 4 * 2 + i % 2;
        const float value = i % 2 == 0 ? values[n][i / 2].x : values[n][i / 2].y;
        updates[n][i] = slot.of_value[token] * value;
        if constexpr (Operands::kCorrects) updates[n][i] = fmaf(-slot.of_found[token], keys[n][i], updates[n][i]);
      }
    }
    if (first > 0) load_updates(base, first, updates);
    if constexpr (!Operands::kCorrects) return;
    const LeftOperand own[2] = {LeftOperand(updates[0]), LeftOperand(updates[1])};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int k = 0; k <= n; ++k) own[k].multiply(updates[n], weights(slot.inverse, n, k));
    }
  }
  // The elements of a right operand that are weights of tokens k * 8 to + 7 for tokens n * 8 to + 7.
  __device__ __forceinline__ float2 weights(const float (&of_tokens)[kChunk][kWeightPitch], int n, int k) const {
    return *reinterpret_cast<const float2*>(&of_tokens[n * 8 + lane / 4][k * 8 + lane % 4 * 2]);
  }
  // Calls use(n, i, token, column) for each update that the lane has.
  template <typename Use>
  __device__ __forceinline__ void for_each_update(const Use& use) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) use(n, i, n * 8 + lane % 4 * 2 + i % 2, column + i / 2 * 8);
    }
  }
  __device__ __forceinline__ void load_updates(int base, int first, float (&updates)[2][4]) const {
    for_each_update([&](int n, int i, int token, int at) {
      if (token < first) updates[n][i] = state.update(base + token)[at];
    });
  }
  // Stores the updates that stay behind the matrix.
  __device__ __forceinline__ void store_updates(int base, int first, int count, const float (&updates)[2][4]) const {
    for_each_update([&](int n, int i, int token, int at) {
      const bool is_new = token >= first && token < count;
      if (is_new && state.keeps(base + token)) state.update(base + token)[at] = updates[n][i];
    });
  }
  // Completes and stores the results of new tokens.
  __device__ __forceinline__ void finish(const ChunkSlot& slot, const float2 (&values)[2][2], int base, int first,
                                         int count, const LeftOperand (&left)[2],
                                         float (&results)[kTokenTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      const int tile = token_tile(n);
      const float2 factors = *reinterpret_cast<const float2*>(&slot.of_query[tile * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) results[n][i] *= i % 2 == 0 ? factors.x : factors.y;
#pragma unroll
      for (int k = 0; k < 2; ++k) left[k].multiply(results[n], weights(slot.seen, tile, k));
      // A lane gets two columns of a token, instead of two tokens of a column.
      const int token = tile * 8 + lane / 4;
      const u64 row = static_cast<u64>(first_row + base + token - state.past);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float2 sums = make_float2(
            fmaf(from.of_value(), tile == 0 ? values[0][part].x : values[1][part].x, results[n][part * 2]),
            fmaf(from.of_value(), tile == 0 ? values[0][part].y : values[1][part].y, results[n][part * 2 + 1]));
        const u32 pair = transpose_matrix(pack2(sums.x, sums.y));
        if (token < first || token >= count) continue;
        *reinterpret_cast<u32*>(from.result(row, column - lane / 4 + part * 8 + lane % 4 * 2)) = pair;
      }
    }
  }
  // Adds all tokens of the chunk to the matrix.
  __device__ __forceinline__ void advance(const ChunkSlot& slot, float (&updates)[2][4], int parts) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 factors = *reinterpret_cast<const float2*>(&slot.of_update[n * 8 + lane % 4 * 2]);
#pragma unroll
      for (int i = 0; i < 4; ++i) updates[n][i] *= i % 2 == 0 ? factors.x : factors.y;
    }
    const LeftOperand left[2] = {LeftOperand(updates[0]), LeftOperand(updates[1])};
    const float decay = slot.decay;
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) tiles[tile][i] *= decay;
    }
    const int token = lane % 8 + lane / 8 % 2 * 8;
    for (int part = 0; part < parts; ++part) {
#pragma unroll
      for (int pair = 0; pair < kKeyTiles / 2; ++pair) {
        u32 key[4];
        load_matrix_x4_transposed(key,
                                  shared_address(&slot.keys[part][token][first_key() + pair * 16 + lane / 16 * 8]));
        float (&low)[4] = tiles[pair * 2], (&high)[4] = tiles[pair * 2 + 1];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          left[n].multiply<true>(low, key[n]);
          left[n].multiply<true>(high, key[n + 2]);
          left[n].multiply<false>(low, key[n]);
          left[n].multiply<false>(high, key[n + 2]);
        }
      }
    }
  }
  // Computes the `count` tokens from position `base` on, of which the `first` are in the state.
  __device__ __forceinline__ void run(const ChunkSlot& slot, int number, int base, int first, int count) {
    float found[2][4] = {}, queries[2][4] = {}, results[kTokenTiles][4], updates[2][4];
    find(slot, found, queries);
    add_other_half(number, found, queries, results);
    u32 pairs[4];
    load_matrix_x4_transposed(pairs,
                              shared_address(&slot.values[lane % 8 + lane / 16 * 8][group * 16 + lane / 8 % 2 * 8]));
    const float2 values[2][2] = {{unpack2(pairs[0]), unpack2(pairs[1])}, {unpack2(pairs[2]), unpack2(pairs[3])}};
    solve(slot, values, base, first, found, updates);
    finish(slot, values, base, first, count, {LeftOperand(updates[0]), LeftOperand(updates[1])}, results);
    if (half == 0 && base + kChunk > state.next_length) store_updates(base, first, count, updates);
    if (base + kChunk >= state.end) return;
    advance(slot, updates, first > 0 ? kParts : 1);
    for_each([&](int, int, float& x) { x = kept_element(x); });
    if (base + kChunk == state.next_length) store();
  }
};

// The sequence that is number `number` of those with chunks, or one without new tokens, by a warp.
__device__ __forceinline__ StateSpan sequence_with_chunks(const StatePlaces& places, int num_seqs, int number) {
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < num_seqs; first += 32) {
    const int seq = first + lane;
    u32 found = __ballot_sync(0xffffffffu, seq < num_seqs && has_chunks(places.of(seq)));
    const int count = __popc(found);
    if (number < count) {
      for (; number > 0; --number) found &= found - 1;
      return places.of(first + __ffs(found) - 1);
    }
    number -= count;
  }
  return {0, 0, 0, -1};
}

// Computes columns of a head of a sequence, those of block number `block`: the elements `of_head` of its state, the new
// tokens in `span`.
template <typename Operands>
__device__ __forceinline__ void replay_chunks(const Operands& from, float* of_head, StateSpan span, int block) {
  extern __shared__ __align__(1024) char memory[];
  static_assert(sizeof(FoundParts) + (sizeof(ChunkSlot) + 16) * kChunkSlots == TL_SHARED_BYTES);
  FoundParts& found_parts = *reinterpret_cast<FoundParts*>(memory);
  ChunkSlot* const slots = reinterpret_cast<ChunkSlot*>(memory + sizeof(FoundParts));
  const u32 barriers = shared_address(slots + kChunkSlots);
  const ReplayState state(of_head, span);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first_column = block * TL_COLUMNS;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kChunkSlots; ++slot) {
      barrier_init(barriers + slot * 16, kWarpReleases);
      barrier_init(barriers + slot * 16 + 8, kColumnWarps * kWarpReleases);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int num_chunks = ceil_div(state.end - state.length, kChunk);
  const auto first_of = [&](int base) { return min_of(kChunk, max_of(0, state.past - base)); };
  if (warp >= kColumnWarps) {
    const int slot = warp - kColumnWarps;
    const ChunkPreparer<Operands> preparer{from, state, slots[slot], span.first, first_column, lane};
    u32 parity = 1;
    for (int number = slot; number < num_chunks; number += kChunkSlots, parity ^= 1) {
      const int base = state.length + number * kChunk;
      barrier_wait(barriers + slot * 16 + 8, parity);
      preparer.prepare(base, first_of(base), min_of(kChunk, state.end - base));
      release_stage(barriers + slot * 16, lane);
    }
  } else {
    const int group = warp / kHalves, column = first_column + group * 16 + lane / 4;
    ChunkColumns<Operands> columns{from, state, found_parts, span.first, column, group, warp % kHalves, lane};
    columns.load();
    RingPlace<kChunkSlots> place{barriers};
    for (int number = 0; number < num_chunks; ++number, place.advance()) {
      const int base = state.length + number * kChunk;
      barrier_wait(barriers + place.stage * 16, place.parity);
      columns.run(slots[place.stage], number, base, first_of(base), min_of(kChunk, state.end - base));
      release_stage(barriers + place.stage * 16 + 8, lane);
    }
  }
}

}  // namespace tl
